/* Full attention in float32, as defined in reference.py.
 *
 * A block of queries meets the keys in runs, whose scores stay in the cache. Scores and weights are matrices
 * p[j][i] of RUN rows and BLOCK columns, j being the key and i the query. The keys and values of each head are first
 * packed one after another, without those that the mask leaves out; every head of a batch element is followed by
 * ROOM rows of zeros, so that tiles need no remainder. The backward pass recomputes the weights. Gradients of keys
 * and values are summed over groups of queries, whose number does not depend on the number of threads.
 */

#include "vectors.h"

#define WIDE 3 /* vectors of queries in a block */
#define BLOCK (WIDE * W)
#define HIGH (VECTOR_BITS == 512 ? 8 : 4) /* rows of a tile of WIDE vectors */
#define RUN 96                            /* keys, a multiple of HIGH and TALL */
#define ROOM 24                           /* at least HIGH and TALL */
#define SHARE 256                         /* fewest queries of a group */
#define TASKS 32                          /* groups of all heads, if there are enough queries */

/* Products and exponentials are functions of their own, so that each gets all registers. */
#define APART static __attribute__((noinline))

/* Floats of a packed row: whole vectors, and whole tiles. */
INLINE int64_t depth_of(int64_t size) { return up_to(size, W > HIGH ? W : HIGH); }

/* Where the packed rows of a head begin; `start` counts the keys of the batch elements before. */
INLINE int64_t place(const int64_t *start, int64_t b, int64_t h, int64_t heads) {
    return (start[b] + b * ROOM) * heads + h * (start[b + 1] - start[b] + ROOM);
}

/* Rows of all heads, twice: of the keys, and then of the values. */
INLINE int64_t packed_rows(const int64_t *start, int64_t batch, int64_t heads) {
    return (start[batch] + batch * ROOM) * heads;
}

/* The row of the j-th key of a batch element. */
INLINE int64_t row_of(const int64_t *start, const int64_t *at, int64_t b, int64_t j) {
    return at ? at[start[b] + j] : start[b] + j;
}

/* Pack the keys or values of all heads. */
static void pack(
    float *packed, const float *from, int64_t stride, const int64_t *start, const int64_t *at, int64_t batch,
    int64_t heads, int64_t size, int64_t threads
) {
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < batch * heads; task++) {
        const int64_t b = task / heads, h = task % heads;
        float *into = packed + place(start, b, h, heads) * depth_of(size);
        for (int64_t j = 0; j < start[b + 1] - start[b]; j++)
            memcpy(
                into + j * depth_of(size), from + row_of(start, at, b, j) * stride + h * size, sizeof(float) * size);
    }
}

/* BLOCK rows as columns; `count` of them exist, the others are zero. */
static void columns_of(
    float *columns, const float *from, int64_t stride, int64_t count, float factor, int64_t size
) {
    for (int64_t d = 0; d < size; d++)
        for (int64_t i = 0; i < BLOCK; i++) columns[d * BLOCK + i] = i < count ? from[i * stride + d] * factor : 0.0f;
}

/* p[j][i] = Σ_d x[j][d] columns[d][i] */
APART void products(float *p, const float *x, const float *columns, int64_t keys, int64_t size) {
    const int64_t depth = depth_of(size);
    for (int64_t j = 0; j < keys; j += HIGH)
        tile_of(
            p + j * BLOCK, BLOCK, NULL, NULL, 0, AS_IT_IS, x + j * depth, depth, 1, columns, BLOCK, size, HIGH, WIDE);
}

/* y[d][i] += Σ_j x[j][d] p[j][i] */
APART void add_to_queries(float *y, const float *x, const float *p, int64_t keys, int64_t size) {
    const int64_t depth = depth_of(size);
    for (int64_t d = 0; d < size; d += HIGH, y += HIGH * BLOCK)
        tile_of(y, BLOCK, NULL, y, BLOCK, PLUS, x + d, 1, depth, p, BLOCK, keys, HIGH, WIDE);
}

/* y[j][d] += Σ_i p[j][i] x[i][d] */
APART void add_to_keys(float *y, const float *x, const float *p, int64_t keys, int64_t size) {
    const int64_t depth = depth_of(size);
    for (int64_t j = 0; j < keys; j += TALL, y += TALL * depth, p += TALL * BLOCK) {
        int64_t d = 0;
        for (; d + LANES <= depth; d += LANES)
            tile_of(y + d, depth, NULL, y + d, depth, PLUS, p, BLOCK, 1, x + d, depth, BLOCK, TALL, ACROSS);
        if (d < depth) tile_of(y + d, depth, NULL, y + d, depth, PLUS, p, BLOCK, 1, x + d, depth, BLOCK, TALL, 1);
    }
}

/* ---- forward ---------------------------------------------------------------------------------------- */

/* Online softmax of a run of keys: turn scores into weights, and rescale what was summed before. */
APART void weigh(float *p, float *o, float *top, float *total, int64_t keys, int64_t size) {
    for (int i = 0; i < BLOCK; i += W) {
        vec high = load(top + i), t = all(0.0f);
        for (int64_t j = 0; j < keys; j++) high = larger(load(p + j * BLOCK + i), high);
        const vec before = exp2_of(load(top + i) - high);
        for (int64_t j = 0; j < keys; j++) {
            const vec e = exp2_of(load(p + j * BLOCK + i) - high);
            store(p + j * BLOCK + i, e);
            t += e;
        }
        for (int64_t d = 0; d < size; d++) store(o + d * BLOCK + i, load(o + d * BLOCK + i) * before);
        store(top + i, high), store(total + i, load(total + i) * before + t);
    }
}

/* `log_sum` is the logarithm to base two of the sum of the weights, as [batch][head][query]. */
int full_forward(
    int64_t threads, int64_t batch, int64_t n, int64_t heads, int64_t size, const float *query, int64_t query_stride,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *at,
    const int64_t *start, float *out, float *log_sum, float scale
) {
    const int64_t rows = packed_rows(start, batch, heads), blocks = (n + BLOCK - 1) / BLOCK, depth = depth_of(size);
    const int64_t each = (2 * depth + RUN + 2) * BLOCK;
    float *packed = zeroed(2 * rows * depth), *memory = scratch(threads, each);
    const int failed = !packed || !memory;
    if (!failed) {
        pack(packed, key, key_stride, start, at, batch, heads, size, threads);
        pack(packed + rows * depth, value, value_stride, start, at, batch, heads, size, threads);
        #pragma omp parallel num_threads(threads)
        {
            float *columns = own_part(memory, each), *o = columns + depth * BLOCK, *top = o + depth * BLOCK;
            float *total = top + BLOCK, *p = total + BLOCK;
            #pragma omp for schedule(dynamic, 4)
            for (int64_t task = 0; task < batch * heads * blocks; task++) {
                const int64_t b = task / blocks / heads, h = task / blocks % heads, i = task % blocks * BLOCK;
                const int64_t first = b * n + i, count = n - i < BLOCK ? n - i : BLOCK;
                const int64_t all_keys = start[b + 1] - start[b];
                const float *k = packed + place(start, b, h, heads) * depth, *v = k + rows * depth;
                columns_of(
                    columns, query + first * query_stride + h * size, query_stride, count, scale * LOG2E, size);
                memset(o, 0, sizeof(float) * depth * BLOCK);
                for (int l = 0; l < BLOCK; l++) top[l] = -INFINITY, total[l] = 0.0f;
                for (int64_t j = 0; j < all_keys; j += RUN) {
                    const int64_t keys = all_keys - j < RUN ? all_keys - j : RUN;
                    products(p, k + j * depth, columns, keys, size);
                    weigh(p, o, top, total, keys, size);
                    add_to_queries(o, v + j * depth, p, keys, size);
                }
                for (int64_t l = 0; l < count; l++) {
                    float *y = out + ((first + l) * heads + h) * size;
                    const float inverse = all_keys ? 1.0f / total[l] : 0.0f;
                    for (int64_t d = 0; d < size; d++) y[d] = o[d * BLOCK + l] * inverse;
                    log_sum[(b * heads + h) * n + i + l] = top[l] + log2f(total[l]);
                }
            }
        }
    }
    free(memory);
    free(packed);
    return failed ? OUT_OF_MEMORY : 0;
}

/* ---- backward --------------------------------------------------------------------------------------- */

/* A block of queries: its rows and columns, and what its softmax needs. */
typedef struct {
    float *query, *grad, *query_columns, *grad_columns, *query_grad, *log_sum, *mean;
} Block;

/* `row` floats lie between the gradients of two queries. */
static void fetch_block(
    const Block *x, const float *query, int64_t query_stride, const float *grad, const float *out, int64_t row,
    const float *log_sum, int64_t count, float scale, int64_t size
) {
    const int64_t depth = depth_of(size);
    for (int64_t i = 0; i < BLOCK; i++) {
        float mean = 0.0f;
        for (int64_t d = 0; d < size; d++) {
            x->query[i * depth + d] = i < count ? query[i * query_stride + d] * scale : 0.0f;
            x->grad[i * depth + d] = i < count ? grad[i * row + d] : 0.0f;
            if (i < count) mean += grad[i * row + d] * out[i * row + d];
        }
        x->log_sum[i] = i < count ? log_sum[i] : 0.0f;
        x->mean[i] = mean;
    }
    columns_of(x->query_columns, query, query_stride, count, scale * LOG2E, size);
    columns_of(x->grad_columns, grad, row, count, 1.0f, size);
    memset(x->query_grad, 0, sizeof(float) * depth * BLOCK);
}

/* Weights of a run of keys, and s = weight * (s - mean): the gradient of the scores. */
APART void slopes(float *p, float *s, const float *log_sum, const float *mean, int64_t keys) {
    for (int i = 0; i < BLOCK; i += W) {
        const vec l = load(log_sum + i), m = load(mean + i);
        for (int64_t j = 0; j < keys; j++) {
            const vec weight = exp2_of(load(p + j * BLOCK + i) - l);
            store(p + j * BLOCK + i, weight);
            store(s + j * BLOCK + i, weight * (load(s + j * BLOCK + i) - m));
        }
    }
}

/* `row_grad` has rows of the gradients of key and value, `2 * heads * size` floats each; those that the mask leaves
 * out are zero already. */
int full_backward(
    int64_t threads, int64_t batch, int64_t n, int64_t heads, int64_t size, const float *query, int64_t query_stride,
    const float *key, int64_t key_stride, const float *value, int64_t value_stride, const int64_t *at,
    const int64_t *start, const float *out, const float *log_sum, const float *grad, float *query_grad,
    float *row_grad, float scale
) {
    const int64_t rows = packed_rows(start, batch, heads), row = heads * size, depth = depth_of(size);
    const int64_t most = batch ? TASKS / (batch * heads) : 1, many = n / SHARE, fewer = most < many ? most : many;
    const int64_t groups = fewer < 1 ? 1 : fewer, share = up_to((n + groups - 1) / groups, BLOCK);
    const int64_t each = (5 * depth + 2 * RUN + 2) * BLOCK;
    /* keys and values, and then their gradients in each group */
    float *packed = zeroed(2 * rows * (1 + groups) * depth), *memory = scratch(threads, each);
    const int failed = !packed || !memory;
    if (!failed) {
        pack(packed, key, key_stride, start, at, batch, heads, size, threads);
        pack(packed + rows * depth, value, value_stride, start, at, batch, heads, size, threads);
        #pragma omp parallel num_threads(threads)
        {
            float *own = own_part(memory, each), *end = own + 5 * depth * BLOCK, *p = end + 2 * BLOCK;
            float *s = p + RUN * BLOCK;
            const Block x = {
                own, own + depth * BLOCK, own + 2 * depth * BLOCK, own + 3 * depth * BLOCK, own + 4 * depth * BLOCK,
                end, end + BLOCK};
            #pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < batch * heads * groups; task++) {
                const int64_t b = task / groups / heads, h = task / groups % heads, group = task % groups;
                const int64_t last = (group + 1) * share < n ? (group + 1) * share : n;
                const int64_t all_keys = start[b + 1] - start[b];
                float *k = packed + place(start, b, h, heads) * depth, *v = k + rows * depth;
                float *k_grad = k + 2 * (1 + group) * rows * depth, *v_grad = k_grad + rows * depth;
                for (int64_t i = group * share; i < last; i += BLOCK) {
                    const int64_t count = last - i < BLOCK ? last - i : BLOCK, from = (b * n + i) * row + h * size;
                    fetch_block(
                        &x, query + (b * n + i) * query_stride + h * size, query_stride, grad + from, out + from, row,
                        log_sum + (b * heads + h) * n + i, count, scale, size);
                    for (int64_t j = 0; j < all_keys; j += RUN) {
                        const int64_t keys = all_keys - j < RUN ? all_keys - j : RUN;
                        products(p, k + j * depth, x.query_columns, keys, size);
                        products(s, v + j * depth, x.grad_columns, keys, size);
                        slopes(p, s, x.log_sum, x.mean, keys);
                        add_to_queries(x.query_grad, k + j * depth, s, keys, size);
                        add_to_keys(k_grad + j * depth, x.query, s, keys, size);
                        add_to_keys(v_grad + j * depth, x.grad, p, keys, size);
                    }
                    for (int64_t l = 0; l < count; l++)
                        for (int64_t d = 0; d < size; d++)
                            query_grad[from + l * row + d] = x.query_grad[d * BLOCK + l] * scale;
                }
            }
            #pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < 2 * batch * heads; task++) {
                const int64_t part = task % 2, h = task / 2 % heads, b = task / 2 / heads;
                const float *g = packed + (place(start, b, h, heads) + (2 + part) * rows) * depth;
                for (int64_t j = 0; j < start[b + 1] - start[b]; j++) {
                    float *y = row_grad + (2 * row_of(start, at, b, j) + part) * row + h * size;
                    for (int64_t group = 0; group < groups; group++)
                        for (int64_t d = 0; d < size; d++) y[d] += g[(2 * group * rows + j) * depth + d];
                }
            }
        }
    }
    free(memory);
    free(packed);
    return failed ? OUT_OF_MEMORY : 0;
}
