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

INLINE int neighbour_forward_sized(
    int64_t threads, int64_t n, int64_t k, int64_t heads, const float *query, int64_t query_stride, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, float *out, float scale, const int size
) {
    const int64_t room = per_head(heads), each = (k + 1) * room; /* weights are [neighbour][head] */
    float *memory = scratch(threads, each);
    if (!memory) return OUT_OF_MEMORY;
    #pragma omp parallel num_threads(threads)
    {
        float *weight = own_part(memory, each), *inverse = weight + k * room;
        #pragma omp for schedule(dynamic, 64)
        for (int64_t i = 0; i < n; i++) {
            const int64_t *at = index + i * k;
            const uint8_t *used = valid ? valid + i * k : NULL;
            neighbour_weights(
                weight, inverse, query + i * query_stride, key, key_stride, at, used,
                bias ? bias + i * k * heads : NULL, heads, k, scale, size);
            for (int64_t h = 0; h < heads; h++) {
                float *o = out + (i * heads + h) * size;
                int d = 0;
                for (; d + 2 * W <= size; d += 2 * W) {
                    vec a = all(0.0f), b = a;
                    for (int64_t j = 0; j < k; j++) {
                        if (used && !used[j]) continue;
                        const float *v = value + at[j] * value_stride + h * size + d;
                        a += load(v) * weight[j * room + h];
                        b += load(v + W) * weight[j * room + h];
                    }
                    store(o + d, a * inverse[h]);
                    store(o + d + W, b * inverse[h]);
                }
                for (; d < size; d++) {
                    float a = 0.0f;
                    for (int64_t j = 0; j < k; j++)
                        if (!used || used[j]) a += value[at[j] * value_stride + h * size + d] * weight[j * room + h];
                    o[d] = a * inverse[h];
                }
            }
        }
    }
    free(memory);
    return 0;
}

int neighbour_forward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, const float *query, int64_t query_stride,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, float *out, float scale
) {
    #define CALL(S) return neighbour_forward_sized(threads, n, k, heads, query, query_stride, key, key_stride, \
                                                   value, value_stride, index, valid, bias, out, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* Gradients of keys and values lie side by side in `row_grad`, of which there are `rows`. */
INLINE int neighbour_backward_sized(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t rows, const float *query, int64_t query_stride,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, const float *out, const float *grad, float *query_grad,
    float *row_grad, float *bias_grad, float scale, const int size
) {
    const int64_t row = heads * size, room = per_head(heads), each = (k + 3) * room;
    int64_t *order, *start = by_row(&order, n * k, 1, rows, index, valid);
    float *memory = scratch(threads, each), *entries = malloc((2 * n * k * heads + 1) * sizeof(float));
    const int failed = !start || !memory || !entries;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *weight = own_part(memory, each), *inverse = weight + k * room;
            float *mean = inverse + room, *slope = mean + room;
            #pragma omp for schedule(dynamic, 64)
            for (int64_t i = 0; i < n; i++) {
                const int64_t *at = index + i * k;
                const float *g = grad + i * row;
                float *dq = query_grad + i * row;
                neighbour_weights(
                    weight, inverse, query + i * query_stride, key, key_stride, at, valid ? valid + i * k : NULL,
                    bias ? bias + i * k * heads : NULL, heads, k, scale, size);
                dots(mean, g, out + i * row, heads, 1.0f, size);
                memset(dq, 0, sizeof(float) * row);
                for (int64_t j = 0; j < k; j++) {
                    if (valid && !valid[i * k + j]) {
                        if (bias_grad) memset(bias_grad + (i * k + j) * heads, 0, sizeof(float) * heads);
                        continue;
                    }
                    const float *x = key + at[j] * key_stride, *v = value + at[j] * value_stride;
                    float *w = weight + j * room, *entry = entries + (i * k + j) * 2 * heads;
                    dots(slope, g, v, heads, 1.0f, size);
                    for (int64_t h = 0; h < room; h += W) {
                        store(w + h, load(w + h) * load(inverse + h));
                        store(slope + h, load(w + h) * (load(slope + h) - load(mean + h)));
                    }
                    if (bias_grad) memcpy(bias_grad + (i * k + j) * heads, slope, sizeof(float) * heads);
                    for (int64_t h = 0; h < heads; h++) {
                        entry[h] = slope[h] * scale, entry[heads + h] = w[h];
                        add_scaled(dq + h * size, x + h * size, entry[h], size);
                    }
                }
            }
            #pragma omp for schedule(dynamic, 16)
            for (int64_t r = 0; r < rows; r++) {
                float *dx = row_grad + 2 * r * row, *dv = dx + row;
                memset(dx, 0, sizeof(float) * 2 * row);
                for (int64_t e = start[r]; e < start[r + 1]; e++) {
                    const int64_t i = order[e] / k;
                    const float *entry = entries + order[e] * 2 * heads;
                    for (int64_t h = 0; h < heads; h++) {
                        add_scaled(dx + h * size, query + i * query_stride + h * size, entry[h], size);
                        add_scaled(dv + h * size, grad + i * row + h * size, entry[heads + h], size);
                    }
                }
            }
        }
    }
    free(entries);
    free(memory);
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

int neighbour_backward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t rows, const float *query,
    int64_t query_stride, const float *key, int64_t key_stride, const float *value, int64_t value_stride,
    const int64_t *index, const uint8_t *valid, const float *bias, const float *out, const float *grad,
    float *query_grad, float *row_grad, float *bias_grad, float scale
) {
    #define CALL(S) return neighbour_backward_sized(threads, n, k, heads, rows, query, query_stride, key, \
        key_stride, value, value_stride, index, valid, bias, out, grad, query_grad, row_grad, bias_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
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
INLINE int cell_forward_sized(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t cells, const float *query, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid,
    float *out, float *log_sum, float scale, const int size
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
                attend_points(
                    o, l, query + c * row, key, key_stride, value, value_stride, order + i, end - i, heads, scale,
                    own_part(memory, each), size);
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

int cell_forward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell,
    const uint8_t *valid, float *out, float *log_sum, float scale
) {
    #define CALL(S) return cell_forward_sized(threads, n, k, heads, cells, query, key, key_stride, value, \
                                              value_stride, cell, valid, out, log_sum, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

INLINE int cell_backward_sized(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t cells, const float *query, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid,
    const float *log_sum, const float *grad, const float *mean, float *query_grad, float *point_grad,
    float scale, const int size
) {
    const int64_t row = heads * size, room = per_head(heads);
    int64_t *order, *start = by_row(&order, n * k, 1, cells, cell, valid);
    float *memory = scratch(threads, 2 * room), *entries = malloc((n * k * heads + 1) * sizeof(float));
    const int failed = !start || !memory || !entries;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *weight = own_part(memory, 2 * room), *slope = weight + room;
            #pragma omp for schedule(static)
            for (int64_t p = 0; p < n; p++) {
                const float *x = key + p * key_stride, *v = value + p * value_stride;
                float *dx = point_grad + 2 * p * row, *dv = dx + row;
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
            #pragma omp for schedule(dynamic, 16)
            for (int64_t c = 0; c < cells; c++) {
                float *dq = query_grad + c * row;
                memset(dq, 0, sizeof(float) * row);
                for (int64_t e = start[c]; e < start[c + 1]; e++)
                    for (int64_t h = 0; h < heads; h++)
                        add_scaled(
                            dq + h * size, key + order[e] / k * key_stride + h * size, entries[order[e] * heads + h],
                            size);
            }
        }
    }
    free(entries);
    free(memory);
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

int cell_backward(
    int64_t threads, int64_t n, int64_t k, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell,
    const uint8_t *valid, const float *log_sum, const float *grad, const float *mean, float *query_grad,
    float *point_grad, float scale
) {
    #define CALL(S) return cell_backward_sized(threads, n, k, heads, cells, query, key, key_stride, value, \
        value_stride, cell, valid, log_sum, grad, mean, query_grad, point_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
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
