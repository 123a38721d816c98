/* Window attention in float32, as defined in reference.py.
 *
 * Each window is processed by one thread. The rows of one head are gathered into rows of `depth` floats, whole vectors,
 * and padded to `high` rows, whole tiles; the padding is ignored. Weights and their gradients are matrices p[j][i]
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

/* Gather the rows of one head of a window. */
INLINE void gather(
    float *rows, const float *from, int64_t stride, const int32_t *at, int64_t points, const int size
) {
    for (int64_t i = 0; i < points; i++) memcpy(rows + i * depth_of(size), from + at[i] * stride, sizeof(float) * size);
}

/* Scatter them back. */
INLINE void scatter(
    float *to, int64_t stride, const float *rows, const int32_t *at, int64_t points, const int size
) {
    for (int64_t i = 0; i < points; i++) memcpy(to + at[i] * stride, rows + i * depth_of(size), sizeof(float) * size);
}

/* Prefetch the rows of the next head. */
INLINE void prefetch(const float *from, int64_t stride, const int32_t *at, int64_t points, const int size) {
    for (int64_t i = 0; i < points; i++)
        for (int64_t d = 0; d < size; d += 16) __builtin_prefetch(from + at[i] * stride + d);
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

INLINE int window_forward_sized(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float *out, float scale, const int size
) {
    const int64_t wide = up_to(points, W), high = tall(wide), area = high * depth_of(size), row = heads * size;
    const int64_t each = 5 * area + (high + 1) * wide;
    float *memory = scratch(threads, each);
    if (!memory) return OUT_OF_MEMORY;
    #pragma omp parallel num_threads(threads)
    {
        float *q = own_part(memory, each), *qt = q + area, *k = qt + area;
        float *v = k + area, *o = v + area, *inverse = o + area, *p = inverse + wide;
        #pragma omp for schedule(dynamic, 4)
        for (int64_t task = 0; task < batch * windows; task++) {
            const int64_t base = task / windows * cells;
            const int32_t *at = rows + task % windows * points;
            const uint8_t *label = labels_of(labels, task % windows, points);
            for (int64_t h = 0; h < heads; h++) {
                const int64_t from = base * stride + h * size;
                gather(q, query + from, stride, at, points, size);
                gather(k, key + from, stride, at, points, size);
                gather(v, value + from, stride, at, points, size);
                if (h + 1 < heads) {
                    prefetch(query + from + size, stride, at, points, size);
                    prefetch(key + from + size, stride, at, points, size);
                    prefetch(value + from + size, stride, at, points, size);
                }
                transpose(qt, q, wide, size);
                const float *b = bias ? bias + h * points * points : NULL;
                window_weights(p, inverse, k, qt, label, b, points, high, wide, scale, size);
                weighted_sums(o, p, 1, wide, v, points, high, size);
                for (int64_t i = 0; i < points; i++)
                    for (int64_t d = 0; d < size; d++) o[i * depth_of(size) + d] *= inverse[i];
                scatter(out + base * row + h * size, row, o, at, points, size);
            }
        }
    }
    free(memory);
    return 0;
}

int window_forward(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float *out, float scale
) {
    #define CALL(S) return window_forward_sized(threads, batch, windows, points, heads, cells, query, key, value, stride, \
                                         rows, labels, bias, out, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* `into` has rows of the gradients of query, key and value, `3 * heads * size` floats each. */
INLINE int window_backward_sized(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, const float *grad, float *into, float *bias_grad, float scale, const int size
) {
    const int64_t wide = up_to(points, W), high = tall(wide), area = high * depth_of(size), row = heads * size;
    const int64_t pairs = bias_grad ? heads * points * points : 0; /* the gradient of the bias, per group */
    const int64_t each = 7 * area + (2 * high + 1) * wide, tasks = batch * windows;
    float *memory = scratch(threads, each), *pair_sums = calloc(GROUPS * pairs + 1, sizeof(float));
    if (!memory || !pair_sums) {
        free(memory);
        free(pair_sums);
        return OUT_OF_MEMORY;
    }
    #pragma omp parallel num_threads(threads)
    {
        float *q = own_part(memory, each), *qt = q + area, *k = qt + area;
        float *v = k + area, *g = v + area, *gt = g + area, *o = gt + area;
        float *inverse = o + area, *p = inverse + wide, *s = p + high * wide;
        #pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < GROUPS; group++)
            for (int64_t task = tasks * group / GROUPS; task < tasks * (group + 1) / GROUPS; task++) {
                const int64_t base = task / windows * cells;
                const int32_t *at = rows + task % windows * points;
                const uint8_t *label = labels_of(labels, task % windows, points);
                for (int64_t h = 0; h < heads; h++) {
                    const int64_t from = base * stride + h * size;
                    gather(q, query + from, stride, at, points, size);
                    gather(k, key + from, stride, at, points, size);
                    gather(v, value + from, stride, at, points, size);
                    gather(g, grad + base * row + h * size, row, at, points, size);
                    if (h + 1 < heads) {
                        prefetch(query + from + size, stride, at, points, size);
                        prefetch(key + from + size, stride, at, points, size);
                        prefetch(value + from + size, stride, at, points, size);
                        prefetch(grad + base * row + (h + 1) * size, row, at, points, size);
                    }
                    transpose(qt, q, wide, size);
                    transpose(gt, g, wide, size);
                    const float *b = bias ? bias + h * points * points : NULL;
                    window_weights(p, inverse, k, qt, label, b, points, high, wide, scale, size);
                    products_of_rows(s, v, gt, high, wide, size);
                    for (int64_t i = 0; i < wide; i += W) {
                        vec mean = all(0.0f);
                        for (int64_t j = 0; j < points; j++) {
                            const vec weight = load(p + j * wide + i) * load(inverse + i);
                            store(p + j * wide + i, weight);
                            mean += weight * load(s + j * wide + i);
                        }
                        for (int64_t j = 0; j < points; j++)
                            store(s + j * wide + i, load(p + j * wide + i) * (load(s + j * wide + i) - mean));
                    }
                    if (bias_grad)
                        for (int64_t j = 0; j < points; j++)
                            for (int64_t i = 0; i < points; i++)
                                pair_sums[group * pairs + (h * points + j) * points + i] += s[j * wide + i];
                    for (int part = 0; part < 3; part++) {
                        if (part == 0) weighted_sums(o, s, 1, wide, k, points, high, size);
                        if (part == 1) weighted_sums(o, s, wide, 1, q, points, high, size);
                        if (part == 2) weighted_sums(o, p, wide, 1, g, points, high, size);
                        if (part < 2)
                            for (int64_t d = 0; d < area; d++) o[d] *= scale;
                        scatter(into + (base * 3 + part) * row + h * size, 3 * row, o, at, points, size);
                    }
                }
            }
    }
    for (int64_t group = 0; group < GROUPS; group++)
        for (int64_t i = 0; i < pairs; i++) bias_grad[i] += pair_sums[group * pairs + i];
    free(pair_sums);
    free(memory);
    return 0;
}

int window_backward(
    int64_t threads, int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, const float *grad, float *into, float *bias_grad, float scale
) {
    #define CALL(S) return window_backward_sized(threads, batch, windows, points, heads, cells, query, key, value, stride, \
                                          rows, labels, bias, grad, into, bias_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}
