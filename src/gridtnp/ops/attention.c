/* Cell attention and sums of cells in float32, as defined in reference.py.
 *
 * Backward passes recompute the weights, keep one or two
 * numbers per entry and head, and then sum the entries of each row, sorted by row: no two threads write to the same
 * row, and gradients do not depend on the number of threads.
 */

#include "heads.h"

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

/* ---- cell attention ------------------------------------------------------------------------------ */

#define RUN 32    /* points of a cell per block */
#define SHARE 256 /* fewest points of a share */
#define SHARES 64 /* at most */

/* What cells attend to. With gates, an entry is a point at one of the nodes around it: the product of rows along axes,
 * then nodes that none of them leads to. Its logits get the logarithm of its weight and linear functions of the
 * features of its rows; its values are multiplied by such functions. */
typedef struct {
    const float *key;
    int64_t key_stride;
    const float *value;
    int64_t value_stride;
    int64_t k, axes, f, nodes, rows;
    const int64_t *row;                /* [node][axis] */
    const float *features;             /* [point][row][f] */
    const float *log_weight;           /* [point][k] */
    const float *logits, *gates, *one; /* [axis][f][head], [axis][f][channel], [axis][channel] */
} Points;

INLINE const float *features_of(const Points *x, int64_t p, int64_t node, int64_t a) {
    return x->features + (p * x->rows + x->row[node * x->axes + a]) * x->f;
}

/* Add the bias of a point at a node to its logits. */
INLINE void add_logits(const Points *x, int64_t p, int64_t node, int64_t heads, float *w) {
    for (int64_t h = 0; h < heads; h++) w[h] += x->log_weight[p * x->k + node];
    for (int64_t a = 0; a < x->axes && node < x->nodes; a++) {
        const float *features = features_of(x, p, node, a), *logits = x->logits + a * x->f * heads;
        for (int64_t l = 0; l < x->f; l++)
            for (int64_t h = 0; h < heads; h++) w[h] += logits[l * heads + h] * features[l];
    }
}

/* The value of a point at a node. */
INLINE void gated_value(const Points *x, int64_t p, int64_t node, int64_t row, float *y, const int64_t f) {
    memcpy(y, x->value + p * x->value_stride, sizeof(float) * row);
    for (int64_t a = 0; a < x->axes && node < x->nodes; a++) {
        const float *features = features_of(x, p, node, a), *gates = x->gates + a * f * row, *one = x->one + a * row;
        int64_t d = 0;
        for (; d + W <= row; d += W) {
            vec g = load(one + d);
            for (int64_t l = 0; l < f; l++) g += load(gates + l * row + d) * features[l];
            store(y + d, load(y + d) * g);
        }
        for (; d < row; d++) {
            float g = one[d];
            for (int64_t l = 0; l < f; l++) g += gates[l * row + d] * features[l];
            y[d] *= g;
        }
    }
}

/* Online softmax: add `count` points or, with gates, entries to a cell with attention output `out` and log-sum-exp
 * `log_sum`. `work` has (RUN + 3) * per_head(heads) floats and, with gates, those of RUN values. */
INLINE void attend_points(
    float *out, float *log_sum, const float *q, const Points *x, const int64_t *points, int64_t count, int64_t heads,
    float scale, float *work, const int size
) {
    const int64_t room = per_head(heads), row = heads * size;
    float *top = work, *total = top + room, *rescale = total + room, *weight = rescale + room;
    float *gated = weight + RUN * room;
    const float *values[RUN];
    memcpy(top, log_sum, sizeof(float) * heads);
    for (int64_t h = 0; h < room; h++) total[h] = 1.0f;
    for (; count > 0; points += RUN, count -= RUN) {
        const int64_t chunk = count < RUN ? count : RUN;
        for (int64_t j = 0; j < chunk; j++) {
            const int64_t p = x->gates ? points[j] / x->k : points[j], node = points[j] - p * x->k;
            dots(weight + j * room, q, x->key + p * x->key_stride, heads, scale, size);
            values[j] = x->gates ? gated + j * row : x->value + p * x->value_stride;
            if (!x->gates) continue;
            add_logits(x, p, node, heads, weight + j * room);
            if (x->f == 6) gated_value(x, p, node, row, gated + j * row, 6); /* a number that compilers know */
            else gated_value(x, p, node, row, gated + j * row, x->f);
        }
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
            int d = 0;
            for (; d + W <= size; d += W) {
                vec a = load(o + d) * rescale[h];
                for (int64_t j = 0; j < chunk; j++)
                    a += load(values[j] + h * size + d) * weight[j * room + h];
                store(o + d, a);
            }
            for (; d < size; d++) {
                float a = o[d] * rescale[h];
                for (int64_t j = 0; j < chunk; j++) a += values[j][h * size + d] * weight[j * room + h];
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
    int64_t axes, int64_t f, int64_t nodes, int64_t rows, const int64_t *rows_of, const float *features,
    const float *log_weight, const float *logits, const float *gates, const float *one, float *out, float *log_sum,
    float scale
) {
    const Points x = {
        key, key_stride, value, value_stride, k, axes, f, nodes, rows, rows_of, features, log_weight, logits, gates, one};
    const int64_t row = heads * size, each = (RUN + 3) * per_head(heads) + (gates ? RUN * row : 0);
    const int64_t shares = n * k < SHARE ? 1 : n * k / SHARE < SHARES ? n * k / SHARE : SHARES;
    int64_t *order, *start = by_row(&order, n * k, gates ? 1 : k, cells, cell, valid), *divided = calloc(shares, sizeof(int64_t));
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
                    o, l, query + c * row, &x, order + i, end - i, heads, scale, own_part(memory, each), S)
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
