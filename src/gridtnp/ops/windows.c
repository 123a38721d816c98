/* Window attention in float32, as defined in reference.py.
 *
 * Each window is processed by one thread. Its rows are read once, from beginning to end, and divided into heads, with
 * rows of `depth` floats, whole vectors, and padded to `high` rows, whole tiles; the padding is ignored. Weights and their gradients are matrices p[j][i]
 * with `high` rows and `wide` columns, j being the key and i the query. The backward pass recomputes the weights. The
 * gradient of the bias is summed over groups of windows, whose number does not depend on the number of threads.
 */

#include "vectors.h"

#define GROUPS 32

INLINE int64_t depth_of(int64_t size) { return up_to(size, W); }

/* A row of tiles: y[r] = Σ_k x[r, k] panel[k] for `width` columns, whole vectors, and `high` rows. */
static __attribute__((noinline)) void products(
    float *y, int64_t y_row, const float *x, int64_t x_row, int64_t x_step, const float *panel, int64_t panel_row,
    int64_t depth, int64_t high, int64_t width
) {
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES)
        for (int64_t i = 0; i < high; i += TALL)
            tile_of(
                y + i * y_row + j, y_row, NULL, NULL, 0, AS_IT_IS, x + i * x_row, x_row, x_step, panel + j, panel_row, depth, TALL,
                ACROSS);
    if (j < width)
        for (int64_t i = 0; i < high; i += TALL)
            tile_of(
                y + i * y_row + j, y_row, NULL, NULL, 0, AS_IT_IS, x + i * x_row, x_row, x_step, panel + j, panel_row, depth, TALL,
                1);
}

/* y[j][i] = Σ_d a[j][d] b[i][d], given the columns of b. */
INLINE void products_of_rows(
    float *y, const float *a, const float *b_columns, int64_t high, int64_t wide, const int size
) {
    products(y, wide, a, depth_of(size), 1, b_columns, wide, size, high, wide);
}

/* y[i][d] = Σ_j p[i][j] b[j][d] over j < points, where p[i][j] is at p[i * row + j * step]. */
INLINE void weighted_sums(
    float *y, const float *p, int64_t row, int64_t step, const float *b, int64_t points, int64_t high, const int size
) {
    products(y, depth_of(size), p, row, step, b, depth_of(size), points, high, depth_of(size));
}

/* Gather the rows of a window and divide them into heads, which are `area` floats apart. */
INLINE void gather(
    float *into, int64_t area, const float *from, int64_t stride, const int32_t *at, int64_t points, int64_t heads,
    const int size
) {
    for (int64_t i = 0; i < points; i++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(into + h * area + i * depth_of(size), from + at[i] * stride + h * size, sizeof(float) * size);
}

/* Put the rows of one head among those of all, which are `row` floats apart. */
INLINE void put(float *rows, int64_t row, const float *head, int64_t points, const int size) {
    for (int64_t i = 0; i < points; i++) memcpy(rows + i * row, head + i * depth_of(size), sizeof(float) * size);
}

/* Scatter the rows of a window. */
INLINE void scatter(float *to, const float *rows, int64_t row, const int32_t *at, int64_t points) {
    for (int64_t i = 0; i < points; i++) memcpy(to + at[i] * row, rows + i * row, sizeof(float) * row);
}

/* columns[d][i] = rows[i][d] */
INLINE void transpose(float *columns, const float *rows, int64_t wide, const int size) {
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < wide; i++) columns[d * wide + i] = rows[i * depth_of(size) + d];
}

/* Unnormalised attention weights, and the inverse of their sum for each query. */
INLINE void window_weights(
    float *p, float *inverse, const float *k, const float *query_columns, const uint8_t *label, const float *bias,
    int64_t points, int64_t high, int64_t wide, float scale, const int size
) {
    products_of_rows(p, k, query_columns, high, wide, size);
    if (bias || label)
        for (int64_t j = 0; j < points; j++)
            for (int64_t i = 0; i < points; i++) {
                float *s = p + j * wide + i;
                if (bias) *s += bias[j * points + i] / scale;
                if (label && label[i] != label[j]) *s = -INFINITY;
            }
    for (int64_t i = 0; i < wide; i += W) {
        vec top = load(p + i), total = all(0.0f);
        for (int64_t j = 1; j < points; j++) top = larger(load(p + j * wide + i), top);
        for (int64_t j = 0; j < points; j++) {
            const vec s = load(p + j * wide + i);
            vec e = exp2_of((s - top) * (scale * LOG2E));
            if (label) e = (vec)((ivec)e & (s != -INFINITY)); /* exp2_of never returns exactly zero */
            store(p + j * wide + i, e);
            total += e;
        }
        store(inverse + i, 1.0f / total);
    }
}

/* The labels of a window, or NULL if they are all equal. */
INLINE const uint8_t *labels_of(const uint8_t *labels, int64_t window, int64_t points) {
    if (!labels) return NULL;
    labels += window * points;
    for (int64_t i = 1; i < points; i++)
        if (labels[i] != labels[0]) return labels;
    return NULL;
}

/* Windows of `points` rows each; rows of queries, keys and values are `stride` floats apart. `bias` is
 * [head][key][query]. */
typedef struct {
    int64_t batch, windows, points, heads, cells, stride, wide, high, area;
    const float *query, *key, *value;
    const int32_t *rows;
    const uint8_t *labels;
    const float *bias;
    float scale;
} Windows;

/* Memory of a thread: rows of all heads, columns and results of one, rows of the result, and weights. */
typedef struct {
    float *q, *k, *v, *g, *columns, *grad_columns, *o, *rows, *inverse, *p, *s;
} Own;

/* Divide memory; returns how many floats that takes. */
static int64_t divide(Own *own, float *memory, const Windows *w, int64_t size) {
    const int64_t all = w->heads * w->area;
    const int64_t floats[] = {all, all, all, all, w->area, w->area, w->area, 3 * w->points * w->heads * size, w->wide,
                              w->high * w->wide, w->high * w->wide};
    float **parts[] = {&own->q, &own->k, &own->v, &own->g, &own->columns, &own->grad_columns, &own->o, &own->rows,
                       &own->inverse, &own->p, &own->s};
    int64_t total = 0;
    for (int i = 0; i < 11; i++) {
        if (memory) *parts[i] = memory + total;
        total += up_to(floats[i], LINE);
    }
    return total;
}

static Windows windows_of(
    int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float scale
) {
    const int64_t wide = up_to(points, W), high = tall(wide);
    return (Windows){batch, windows, points, heads, cells, stride, wide, high, high * depth_of(size), query, key,
                     value, rows, labels, bias, scale};
}

/* Gather the queries, keys and values of a window. */
INLINE void gather_window(const Own *own, const Windows *w, int64_t base, const int32_t *at, const int size) {
    gather(own->q, w->area, w->query + base * w->stride, w->stride, at, w->points, w->heads, size);
    gather(own->k, w->area, w->key + base * w->stride, w->stride, at, w->points, w->heads, size);
    gather(own->v, w->area, w->value + base * w->stride, w->stride, at, w->points, w->heads, size);
}

/* Functions of one window are called inside a parallel region, by size: the compiler moves the region into a function
 * of its own, for which the size would not be known. */
INLINE void forward_window(const Own *own, const Windows *w, int64_t task, float *out, const int size) {
    const int64_t points = w->points, base = task / w->windows * w->cells, row = w->heads * size;
    const int32_t *at = w->rows + task % w->windows * points;
    const uint8_t *label = labels_of(w->labels, task % w->windows, points);
    float *o = own->o;
    gather_window(own, w, base, at, size);
    for (int64_t h = 0; h < w->heads; h++) {
        const float *k = own->k + h * w->area, *b = w->bias ? w->bias + h * points * points : NULL;
        transpose(own->columns, own->q + h * w->area, w->wide, size);
        window_weights(own->p, own->inverse, k, own->columns, label, b, points, w->high, w->wide, w->scale, size);
        weighted_sums(o, own->p, 1, w->wide, own->v + h * w->area, points, w->high, size);
        for (int64_t i = 0; i < points; i++)
            for (int64_t d = 0; d < depth_of(size); d += W)
                store(o + i * depth_of(size) + d, load(o + i * depth_of(size) + d) * own->inverse[i]);
        put(own->rows + h * size, row, o, points, size);
    }
    scatter(out + base * row, own->rows, row, at, points);
}

int window_forward(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float *out, float scale
) {
    const Windows w = windows_of(
        batch, windows, points, heads, size, cells, query, key, value, stride, rows, labels, bias, scale);
    Own own;
    const int64_t each = divide(&own, NULL, &w, size);
    float *memory = scratch(threads, each);
    if (!memory) return OUT_OF_MEMORY;
    #pragma omp parallel num_threads(threads) private(own)
    {
        divide(&own, own_part(memory, each), &w, size);
        #pragma omp for schedule(dynamic, 4)
        for (int64_t task = 0; task < batch * windows; task++) {
            #define CALL(S) forward_window(&own, &w, task, out, S)
            FOR_SIZE(size, CALL)
            #undef CALL
        }
    }
    free(memory);
    return 0;
}

/* `into` has rows of the gradients of query, key and value, `3 * heads * size` floats each; that of the bias is added
 * to `pair_sums`, unless it is NULL. */
INLINE void backward_window(
    const Own *own, const Windows *w, int64_t task, const float *grad, float *into, float *pair_sums, const int size
) {
    const int64_t points = w->points, wide = w->wide, high = w->high;
    const int64_t base = task / w->windows * w->cells, row = w->heads * size;
    const int32_t *at = w->rows + task % w->windows * points;
    const uint8_t *label = labels_of(w->labels, task % w->windows, points);
    float *p = own->p, *s = own->s, *o = own->o;
    gather_window(own, w, base, at, size);
    gather(own->g, w->area, grad + base * row, row, at, points, w->heads, size);
    for (int64_t h = 0; h < w->heads; h++) {
        const float *q = own->q + h * w->area, *k = own->k + h * w->area, *g = own->g + h * w->area;
        const float *b = w->bias ? w->bias + h * points * points : NULL;
        transpose(own->columns, q, wide, size);
        transpose(own->grad_columns, g, wide, size);
        window_weights(p, own->inverse, k, own->columns, label, b, points, high, wide, w->scale, size);
        products_of_rows(s, own->v + h * w->area, own->grad_columns, high, wide, size);
        for (int64_t i = 0; i < wide; i += W) {
            const vec inverse = load(own->inverse + i);
            vec mean = all(0.0f);
            for (int64_t j = 0; j < points; j++) {
                const vec weight = load(p + j * wide + i) * inverse;
                store(p + j * wide + i, weight);
                mean += weight * load(s + j * wide + i);
            }
            for (int64_t j = 0; j < points; j++)
                store(s + j * wide + i, load(p + j * wide + i) * (load(s + j * wide + i) - mean));
        }
        if (pair_sums)
            for (int64_t j = 0; j < points; j++)
                for (int64_t i = 0; i < points; i++) pair_sums[(h * points + j) * points + i] += s[j * wide + i];
        for (int part = 0; part < 3; part++) {
            if (part == 0) weighted_sums(o, s, 1, wide, k, points, high, size);
            if (part == 1) weighted_sums(o, s, wide, 1, q, points, high, size);
            if (part == 2) weighted_sums(o, p, wide, 1, g, points, high, size);
            if (part < 2)
                for (int64_t d = 0; d < w->area; d += W) store(o + d, load(o + d) * w->scale);
            put(own->rows + part * row + h * size, 3 * row, o, points, size);
        }
    }
    scatter(into + 3 * base * row, own->rows, 3 * row, at, points);
}

int window_backward(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, const float *grad, float *into, float *bias_grad, float scale
) {
    const Windows w = windows_of(
        batch, windows, points, heads, size, cells, query, key, value, stride, rows, labels, bias, scale);
    Own own;
    const int64_t each = divide(&own, NULL, &w, size), tasks = batch * windows;
    const int64_t pairs = bias_grad ? heads * points * points : 0; /* the gradient of the bias, per group */
    float *memory = scratch(threads, each), *pair_sums = zeroed(GROUPS * pairs);
    if (!memory || !pair_sums) {
        free(memory);
        free(pair_sums);
        return OUT_OF_MEMORY;
    }
    #pragma omp parallel num_threads(threads) private(own)
    {
        divide(&own, own_part(memory, each), &w, size);
        #pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < GROUPS; group++) {
            float *sums = bias_grad ? pair_sums + group * pairs : NULL;
            for (int64_t task = tasks * group / GROUPS; task < tasks * (group + 1) / GROUPS; task++) {
                #define CALL(S) backward_window(&own, &w, task, grad, into, sums, S)
                FOR_SIZE(size, CALL)
                #undef CALL
            }
        }
    }
    for (int64_t group = 0; group < GROUPS; group++)
        for (int64_t i = 0; i < pairs; i++) bias_grad[i] += pair_sums[group * pairs + i];
    free(pair_sums);
    free(memory);
    return 0;
}
