/* Cell and neighbour attention and sums of cells in float32, as defined in reference.py.
 *
 * A row is one token with all its heads, `heads * size` floats. Consecutive rows are `stride` floats apart, so
 * that keys and values can be views of one projection. Backward passes recompute the weights, keep one or two
 * numbers per entry and head, and then sum the entries of each row, sorted by row: no two threads write to the same
 * row, and gradients do not depend on the number of threads.
 */

#undef VECTOR_BITS
#define VECTOR_BITS 256 /* heads come in eights */
#include "vectors.h"

/* One float per head, rounded up to whole vectors. */
INLINE int64_t per_head(int64_t heads) { return (heads + W - 1) / W * W; }

/* y[i] = exp(y[i] - top) for i < n; returns the sum. exp(-inf) is 0. y is padded to whole vectors. */
INLINE float exp_all(float *y, float top, int n) {
    vec total = all(0.0f);
    for (int i = n; i % W; i++) y[i] = -INFINITY;
    for (int i = 0; i < n; i += W) {
        const vec x = load(y + i);
        const ivec there = x != -INFINITY; /* exp_of never returns exactly zero */
        const vec e = (vec)((ivec)exp_of(x - top) & there);
        store(y + i, e);
        total += e;
    }
    return sum(total);
}

INLINE float dot(const float *a, const float *b, const int64_t size) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int d = 0;
    for (; d + W <= size; d += W) s += load(a + d) * load(b + d);
    for (; d < size; d++) rest += a[d] * b[d];
    return size < W ? rest : sum(s) + rest;
}

/* Horizontal sums of eight vectors, as one vector. */
INLINE vec sums(const vec *p) {
#if defined(__clang__) || __GNUC__ >= 12
    vec a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = __builtin_shufflevector(p[2 * i], p[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14)
             + __builtin_shufflevector(p[2 * i], p[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13)
             + __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(b[0], b[1], 0, 1, 2, 3, 8, 9, 10, 11)
         + __builtin_shufflevector(b[0], b[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    vec s;
    for (int i = 0; i < W; i++) s[i] = sum(p[i]);
    return s;
#endif
}

/* y[h] = scale * a_h · b_h for each head; y is padded to per_head(heads). */
INLINE void dots(float *y, const float *a, const float *b, int64_t heads, float scale, const int size) {
    int64_t h = 0;
    for (; size % W == 0 && h + W <= heads; h += W) {
        vec p[W];
        #pragma GCC unroll 8
        for (int i = 0; i < W; i++) {
            const float *x = a + (h + i) * size, *z = b + (h + i) * size;
            p[i] = load(x) * load(z);
            for (int d = W; d < size; d += W) p[i] += load(x + d) * load(z + d);
        }
        store(y + h, sums(p) * scale);
    }
    for (; h < heads; h++) y[h] = dot(a + h * size, b + h * size, size) * scale;
}

INLINE void add_scaled(float *y, const float *x, const float a, const int64_t size) {
    int d = 0;
    for (; d + W <= size; d += W) store(y + d, load(y + d) + load(x + d) * a);
    for (; d < size; d++) y[d] += a * x[d];
}

INLINE void scale_by(float *y, const float a, const int size) {
    int d = 0;
    for (; d + W <= size; d += W) store(y + d, load(y + d) * a);
    for (; d < size; d++) y[d] *= a;
}

/* ---- entries sorted by row ---------------------------------------------------------------------------- */

/* Counting sort of `entries`, of which entry e belongs to row at[e]: those of row r are order[start[r]] to
 * order[start[r + 1] - 1], in their order, divided by `per`. Freeing the returned `start` frees `order` as well. */
static int64_t *by_row(
    int64_t **order, int64_t entries, int64_t per, int64_t rows, const int64_t *at, const uint8_t *valid
) {
    int64_t *start = calloc(rows + 2 + entries, sizeof(int64_t));
    if (!start) return NULL;
    *order = start + rows + 2;
    for (int64_t e = 0; e < entries; e++)
        if (!valid || valid[e]) start[at[e] + 2]++;
    for (int64_t r = 0; r < rows; r++) start[r + 2] += start[r + 1];
    for (int64_t e = 0; e < entries; e++)
        if (!valid || valid[e]) (*order)[start[at[e] + 1]++] = e / per;
    return start;
}

/* ---- neighbour attention ------------------------------------------------------------------------- */

/* Unnormalised attention weights of one query as [neighbour][head], and the inverse of their sum per head.
 * Invalid neighbours have weight zero. Rows are padded to per_head(heads). */
INLINE void neighbour_weights(
    float *weight, float *inverse, const float *q, const float *key, int64_t key_stride, const int64_t *at,
    const uint8_t *valid, const float *bias, int64_t heads, int64_t k, float scale, const int size
) {
    const int64_t room = per_head(heads);
    for (int64_t j = 0; j < k; j++) {
        float *w = weight + j * room;
        if (valid && !valid[j]) continue;
        dots(w, q, key + at[j] * key_stride, heads, scale, size);
        if (bias)
            for (int64_t h = 0; h < heads; h++) w[h] += bias[j * heads + h];
    }
    for (int64_t h = 0; h < heads; h += W) {
        vec top = all(-INFINITY), total = all(0.0f);
        for (int64_t j = 0; j < k; j++)
            if (!valid || valid[j]) top = larger(load(weight + j * room + h), top);
        for (int64_t j = 0; j < k; j++) {
            vec e = all(0.0f);
            if (!valid || valid[j]) e = exp_of(load(weight + j * room + h) - top);
            store(weight + j * room + h, e);
            total += e;
        }
        for (int l = 0; l < W; l++) inverse[h + l] = total[l] == 0.0f ? 0.0f : 1.0f / total[l];
    }
}

/* What attention to neighbours is computed from; `bias` is [query][neighbour][head]. */
typedef struct {
    int64_t k, heads;
    const float *query;
    int64_t query_stride;
    const float *key;
    int64_t key_stride;
    const float *value;
    int64_t value_stride;
    const int64_t *index;
    const uint8_t *valid;
    const float *bias;
    float scale;
} Neighbours;

/* Functions of one query, point or cell are called inside a parallel region, by size: the compiler moves the region
 * into a function of its own, for which the size would not be known. */
INLINE void weigh_neighbours(const Neighbours *x, int64_t i, float *weight, float *inverse, const int size) {
    neighbour_weights(
        weight, inverse, x->query + i * x->query_stride, x->key, x->key_stride, x->index + i * x->k,
        x->valid ? x->valid + i * x->k : NULL, x->bias ? x->bias + i * x->k * x->heads : NULL, x->heads, x->k,
        x->scale, size);
}

INLINE void neighbour_forward_one(const Neighbours *x, int64_t i, float *weight, float *out, const int size) {
    const int64_t k = x->k, heads = x->heads, room = per_head(heads), stride = x->value_stride;
    const int64_t *at = x->index + i * k;
    const uint8_t *used = x->valid ? x->valid + i * k : NULL;
    float *inverse = weight + k * room;
    weigh_neighbours(x, i, weight, inverse, size);
    for (int64_t h = 0; h < heads; h++) {
        float *o = out + (i * heads + h) * size;
        int d = 0;
        for (; d + 2 * W <= size; d += 2 * W) {
            vec a = all(0.0f), b = a;
            for (int64_t j = 0; j < k; j++) {
                if (used && !used[j]) continue;
                const float *v = x->value + at[j] * stride + h * size + d;
                a += load(v) * weight[j * room + h];
                b += load(v + W) * weight[j * room + h];
            }
            store(o + d, a * inverse[h]);
            store(o + d + W, b * inverse[h]);
        }
        for (; d < size; d++) {
            float a = 0.0f;
            for (int64_t j = 0; j < k; j++)
                if (!used || used[j]) a += x->value[at[j] * stride + h * size + d] * weight[j * room + h];
            o[d] = a * inverse[h];
        }
    }
}

int neighbour_forward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, const float *query, int64_t query_stride,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, float *out, float scale
) {
    const Neighbours x = {
        k, heads, query, query_stride, key, key_stride, value, value_stride, index, valid, bias, scale};
    const int64_t each = (k + 1) * per_head(heads); /* weights are [neighbour][head] */
    float *memory = scratch(threads, each);
    if (!memory) return OUT_OF_MEMORY;
    #pragma omp parallel for schedule(dynamic, 64) num_threads(threads)
    for (int64_t i = 0; i < n; i++) {
        #define CALL(S) neighbour_forward_one(&x, i, own_part(memory, each), out, S)
        FOR_SIZE(size, CALL)
        #undef CALL
    }
    free(memory);
    return 0;
}

/* The gradient of a query, and for each neighbour the slopes and weights of all heads, which its row needs. */
INLINE void neighbour_backward_one(
    const Neighbours *x, int64_t i, float *weight, const float *out, const float *grad, float *query_grad,
    float *entries, float *bias_grad, const int size
) {
    const int64_t k = x->k, heads = x->heads, row = heads * size, room = per_head(heads);
    const int64_t *at = x->index + i * k;
    const float *g = grad + i * row;
    float *inverse = weight + k * room, *mean = inverse + room, *slope = mean + room, *dq = query_grad + i * row;
    weigh_neighbours(x, i, weight, inverse, size);
    dots(mean, g, out + i * row, heads, 1.0f, size);
    memset(dq, 0, sizeof(float) * row);
    for (int64_t j = 0; j < k; j++) {
        if (x->valid && !x->valid[i * k + j]) {
            if (bias_grad) memset(bias_grad + (i * k + j) * heads, 0, sizeof(float) * heads);
            continue;
        }
        const float *y = x->key + at[j] * x->key_stride, *v = x->value + at[j] * x->value_stride;
        float *w = weight + j * room, *entry = entries + (i * k + j) * 2 * heads;
        dots(slope, g, v, heads, 1.0f, size);
        for (int64_t h = 0; h < room; h += W) {
            store(w + h, load(w + h) * load(inverse + h));
            store(slope + h, load(w + h) * (load(slope + h) - load(mean + h)));
        }
        if (bias_grad) memcpy(bias_grad + (i * k + j) * heads, slope, sizeof(float) * heads);
        for (int64_t h = 0; h < heads; h++) {
            entry[h] = slope[h] * x->scale, entry[heads + h] = w[h];
            add_scaled(dq + h * size, y + h * size, entry[h], size);
        }
    }
}

/* The gradients of a key and a value, side by side, from the entries of its row. */
INLINE void neighbour_backward_row(
    const Neighbours *x, const int64_t *order, int64_t count, const float *grad, const float *entries, float *row_grad,
    const int size
) {
    const int64_t heads = x->heads, row = heads * size;
    float *dx = row_grad, *dv = dx + row;
    memset(dx, 0, sizeof(float) * 2 * row);
    for (int64_t e = 0; e < count; e++) {
        const int64_t i = order[e] / x->k;
        const float *entry = entries + order[e] * 2 * heads;
        for (int64_t h = 0; h < heads; h++) {
            add_scaled(dx + h * size, x->query + i * x->query_stride + h * size, entry[h], size);
            add_scaled(dv + h * size, grad + i * row + h * size, entry[heads + h], size);
        }
    }
}

/* Gradients of keys and values lie side by side in `row_grad`, of which there are `rows`. */
int neighbour_backward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t rows, const float *query,
    int64_t query_stride, const float *key, int64_t key_stride, const float *value, int64_t value_stride,
    const int64_t *index, const uint8_t *valid, const float *bias, const float *out, const float *grad,
    float *query_grad, float *row_grad, float *bias_grad, float scale
) {
    const Neighbours x = {
        k, heads, query, query_stride, key, key_stride, value, value_stride, index, valid, bias, scale};
    const int64_t each = (k + 3) * per_head(heads);
    int64_t *order, *start = by_row(&order, n * k, 1, rows, index, valid);
    float *memory = scratch(threads, each), *entries = malloc((2 * n * k * heads + 1) * sizeof(float));
    const int failed = !start || !memory || !entries;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            #pragma omp for schedule(dynamic, 64)
            for (int64_t i = 0; i < n; i++) {
                #define CALL(S) neighbour_backward_one( \
                    &x, i, own_part(memory, each), out, grad, query_grad, entries, bias_grad, S)
                FOR_SIZE(size, CALL)
                #undef CALL
            }
            #pragma omp for schedule(dynamic, 16)
            for (int64_t r = 0; r < rows; r++) {
                #define CALL(S) neighbour_backward_row( \
                    &x, order + start[r], start[r + 1] - start[r], grad, entries, row_grad + 2 * r * heads * size, S)
                FOR_SIZE(size, CALL)
                #undef CALL
            }
        }
    }
    free(entries);
    free(memory);
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

/* ---- cell attention ------------------------------------------------------------------------------ */

#define RUN 32    /* points of a cell per block */
#define SHARE 256 /* fewest points of a share */
#define SHARES 64 /* at most */

/* Online softmax: add `count` points to a cell with attention output `out` and log-sum-exp `log_sum`. `work` has
 * (RUN + 3) * per_head(heads) floats. */
INLINE void attend_points(
    float *out, float *log_sum, const float *q, const float *key, int64_t key_stride, const float *value,
    int64_t value_stride, const int64_t *points, int64_t count, int64_t heads, float scale, float *work, const int size
) {
    const int64_t room = per_head(heads);
    float *top = work, *total = top + room, *rescale = total + room, *weight = rescale + room;
    memcpy(top, log_sum, sizeof(float) * heads);
    for (int64_t h = 0; h < room; h++) total[h] = 1.0f;
    for (; count > 0; points += RUN, count -= RUN) {
        const int64_t chunk = count < RUN ? count : RUN;
        for (int64_t j = 0; j < chunk; j++)
            dots(weight + j * room, q, key + points[j] * key_stride, heads, scale, size);
        for (int64_t h = 0; h < room; h += W) {
            vec high = load(top + h);
            for (int64_t j = 0; j < chunk; j++) high = larger(load(weight + j * room + h), high);
            const vec before = exp_of(load(top + h) - high);
            vec t = load(total + h) * before;
            for (int64_t j = 0; j < chunk; j++) {
                const vec e = exp_of(load(weight + j * room + h) - high);
                store(weight + j * room + h, e);
                t += e;
            }
            store(top + h, high), store(total + h, t), store(rescale + h, before);
        }
        for (int64_t h = 0; h < heads; h++) {
            float *o = out + h * size;
            const float *v = value + h * size;
            int d = 0;
            for (; d + W <= size; d += W) {
                vec a = load(o + d) * rescale[h];
                for (int64_t j = 0; j < chunk; j++)
                    a += load(v + points[j] * value_stride + d) * weight[j * room + h];
                store(o + d, a);
            }
            for (; d < size; d++) {
                float a = o[d] * rescale[h];
                for (int64_t j = 0; j < chunk; j++) a += v[points[j] * value_stride + d] * weight[j * room + h];
                o[d] = a;
            }
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        scale_by(out + h * size, 1.0f / total[h], size);
        log_sum[h] = top[h] + logf(total[h]);
    }
}

/* Merge two partial attention outputs of one cell into the first. */
static void merge_attention(
    float *out, float *log_sum, const float *other, const float *other_log_sum, int64_t heads, int64_t size
) {
    for (int64_t h = 0; h < heads; h++) {
        const float top = fmaxf(log_sum[h], other_log_sum[h]);
        const float a = expf(log_sum[h] - top), b = expf(other_log_sum[h] - top);
        for (int64_t d = h * size; d < (h + 1) * size; d++) out[d] = (out[d] * a + other[d] * b) / (a + b);
        log_sum[h] = top + logf(a + b);
    }
}

/* `out` and `log_sum` initially hold the cells' own values and logits. The points, sorted by cell, are divided into
 * shares, whose number does not depend on that of the threads; a cell that spans two shares belongs to the first, and
 * the second merges its partial result at the end. */
int cell_forward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t cells, const float *query, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid,
    float *out, float *log_sum, float scale
) {
    const int64_t row = heads * size, each = (RUN + 3) * per_head(heads);
    const int64_t shares = n * k < SHARE ? 1 : n * k / SHARE < SHARES ? n * k / SHARE : SHARES;
    int64_t *order, *start = by_row(&order, n * k, k, cells, cell, valid), *divided = calloc(shares, sizeof(int64_t));
    float *memory = scratch(threads, each), *apart = calloc(shares, (row + heads) * sizeof(float));
    const int failed = !start || !divided || !memory || !apart;
    if (!failed) {
        #pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t s = 0; s < shares; s++) {
            const int64_t last = start[cells] * (s + 1) / shares;
            int64_t i = start[cells] * s / shares, c = 0;
            while (i < last) {
                while (start[c + 1] <= i) c++;
                const int64_t end = start[c + 1] < last ? start[c + 1] : last;
                float *o = out + c * row, *l = log_sum + c * heads;
                if (i > start[c]) {
                    divided[s] = c + 1; /* zero means none */
                    o = apart + s * (row + heads), l = o + row;
                    for (int64_t h = 0; h < heads; h++) l[h] = -INFINITY;
                }
                #define CALL(S) attend_points( \
                    o, l, query + c * row, key, key_stride, value, value_stride, order + i, end - i, heads, scale, \
                    own_part(memory, each), S)
                FOR_SIZE(size, CALL)
                #undef CALL
                i = end;
            }
        }
        for (int64_t s = 0; s < shares; s++) {
            const float *o = apart + s * (row + heads);
            const int64_t c = divided[s] - 1;
            if (c >= 0) merge_attention(out + c * row, log_sum + c * heads, o, o + row, heads, size);
        }
    }
    free(apart);
    free(memory);
    free(divided);
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

/* The gradients of a point's key and value, side by side, and the slopes of its entries, which the queries need. */
INLINE void cell_backward_one(
    int64_t p, int64_t k, int64_t heads, const float *query, const float *x, const float *v, const int64_t *cell,
    const uint8_t *valid, const float *log_sum, const float *grad, const float *mean, float *point_grad,
    float *entries, float scale, float *weight, const int size
) {
    const int64_t row = heads * size;
    float *slope = weight + per_head(heads), *dx = point_grad + 2 * p * row, *dv = dx + row;
    memset(dx, 0, sizeof(float) * 2 * row);
    for (int64_t e = p * k; e < (p + 1) * k; e++) {
        if (valid && !valid[e]) continue;
        const int64_t c = cell[e];
        const float *q = query + c * row, *g = grad + c * row;
        dots(weight, q, x, heads, scale, size);
        for (int64_t h = 0; h < heads; h++) weight[h] -= log_sum[c * heads + h];
        exp_all(weight, 0.0f, heads);
        dots(slope, g, v, heads, 1.0f, size);
        for (int64_t h = 0; h < heads; h++) {
            const float w = weight[h], d = w * (slope[h] - mean[c * heads + h]) * scale;
            entries[e * heads + h] = d;
            add_scaled(dv + h * size, g + h * size, w, size);
            add_scaled(dx + h * size, q + h * size, d, size);
        }
    }
}

/* The gradient of a cell's query. */
INLINE void cell_backward_query(
    float *dq, const int64_t *order, int64_t count, int64_t k, int64_t heads, const float *key, int64_t key_stride,
    const float *entries, const int size
) {
    memset(dq, 0, sizeof(float) * heads * size);
    for (int64_t e = 0; e < count; e++)
        for (int64_t h = 0; h < heads; h++)
            add_scaled(dq + h * size, key + order[e] / k * key_stride + h * size, entries[order[e] * heads + h], size);
}

int cell_backward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell,
    const uint8_t *valid, const float *log_sum, const float *grad, const float *mean, float *query_grad,
    float *point_grad, float scale
) {
    const int64_t each = 2 * per_head(heads);
    int64_t *order, *start = by_row(&order, n * k, 1, cells, cell, valid);
    float *memory = scratch(threads, each), *entries = malloc((n * k * heads + 1) * sizeof(float));
    const int failed = !start || !memory || !entries;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            #pragma omp for schedule(static)
            for (int64_t p = 0; p < n; p++) {
                #define CALL(S) cell_backward_one( \
                    p, k, heads, query, key + p * key_stride, value + p * value_stride, cell, valid, log_sum, grad, mean, \
                    point_grad, entries, scale, own_part(memory, each), S)
                FOR_SIZE(size, CALL)
                #undef CALL
            }
            #pragma omp for schedule(dynamic, 16)
            for (int64_t c = 0; c < cells; c++) {
                #define CALL(S) cell_backward_query( \
                    query_grad + c * heads * size, order + start[c], start[c + 1] - start[c], k, heads, key, key_stride, \
                    entries, S)
                FOR_SIZE(size, CALL)
                #undef CALL
            }
        }
    }
    free(entries);
    free(memory);
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

/* ---- sums of cells ------------------------------------------------------------------------------------ */

int cell_sum_forward(
    int64_t threads, int64_t n, int64_t k, int64_t width, int64_t cells, const float *z, const int64_t *cell,
    const float *weight, float *out
) {
    int64_t *order, *start = by_row(&order, n * k, 1, cells, cell, NULL);
    if (!start) return OUT_OF_MEMORY;
    #pragma omp parallel for schedule(dynamic, 16) num_threads(threads)
    for (int64_t c = 0; c < cells; c++) {
        float *y = out + c * width;
        memset(y, 0, sizeof(float) * width);
        for (int64_t e = start[c]; e < start[c + 1]; e++)
            add_scaled(y, z + order[e] / k * width, weight[order[e]], width);
    }
    free(start);
    return 0;
}

/* Gradients of points and weights; those that are not needed are NULL. */
int cell_sum_backward(
    int64_t threads, int64_t n, int64_t k, int64_t width, const float *z, const int64_t *cell, const float *weight,
    const float *grad, float *z_grad, float *weight_grad
) {
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < n; p++) {
        if (z_grad) memset(z_grad + p * width, 0, sizeof(float) * width);
        for (int64_t e = p * k; e < (p + 1) * k; e++) {
            const float *g = grad + cell[e] * width;
            if (z_grad) add_scaled(z_grad + p * width, g, weight[e], width);
            if (weight_grad) weight_grad[e] = dot(g, z + p * width, width);
        }
    }
    return 0;
}
