/* Attention to neighbours in float32, as defined in reference.py.
 *
 * Backward passes recompute the weights, keep one or two
 * numbers per entry and head, and then sum the entries of each row, sorted by row: no two threads write to the same
 * row, and gradients do not depend on the number of threads.
 */

#include "heads.h"

/* The nodes of a stencil: the product of rows along its axes, then nodes that none of them leads to. A node's key is
 * that of its grid point and, from each of its rows, keys of offsets times the features of the row. */
typedef struct {
    int64_t axes, f, nodes;
    const int64_t *first;    /* [axis + 1]: the first row of each axis */
    const int64_t *row;      /* [node][axis] */
    const float *features;   /* [query][row][f] */
    const float *keys;       /* [axis][f][head][size] */
    const float *log_weight; /* [query][neighbour] */
} Offsets;

/* What attention to neighbours is computed from; `bias` is [query][neighbour][head]. Without keys of offsets, these
 * are left out. */
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
    Offsets offsets;
    float scale;
} Neighbours;

/* Floats that the logits of offsets and the biases of rows need: [axis][f][head] and [row][head]. */
INLINE int64_t for_logits(const Neighbours *x) { return x->offsets.axes * x->offsets.f * per_head(x->heads); }
INLINE int64_t for_rows(const Neighbours *x) {
    return x->offsets.axes ? x->offsets.first[x->offsets.axes] * per_head(x->heads) : 0;
}

/* The logit of each key of offsets, and from these the bias of each row. */
INLINE void row_biases(const Neighbours *x, int64_t i, float *logit, float *bias, const int size) {
    const Offsets *o = &x->offsets;
    const int64_t room = per_head(x->heads), f = o->f;
    const float *features = o->features + i * o->first[o->axes] * f;
    for (int64_t l = 0; l < o->axes * f; l++)
        dots(logit + l * room, x->query + i * x->query_stride, o->keys + l * x->heads * size, x->heads, x->scale, size);
    for (int64_t a = 0; a < o->axes; a++)
        for (int64_t r = o->first[a]; r < o->first[a + 1]; r++)
            for (int64_t h = 0; h < room; h += W) {
                vec s = all(0.0f);
                for (int64_t l = 0; l < f; l++) s += load(logit + (a * f + l) * room + h) * features[r * f + l];
                store(bias + r * room + h, s);
            }
}

/* Add the logarithm of a neighbour's weight and the biases of its rows to its logits. */
INLINE void add_offset(const Neighbours *x, int64_t i, int64_t j, const float *bias, float *w) {
    const Offsets *o = &x->offsets;
    const int64_t room = per_head(x->heads);
    for (int64_t h = 0; h < room; h += W) {
        vec s = load(w + h) + o->log_weight[i * x->k + j];
        for (int64_t a = 0; a < o->axes && j < o->nodes; a++) s += load(bias + o->row[j * o->axes + a] * room + h);
        store(w + h, s);
    }
}

/* Unnormalised attention weights of one query as [neighbour][head], then the inverse of their sum per head, and the
 * logits and biases of offsets. Invalid neighbours have weight zero. Rows are padded to per_head(heads).
 *
 * Functions of one query, point or cell are called inside a parallel region, by size: the compiler moves the region
 * into a function of its own, for which the size would not be known. */
INLINE void weigh_neighbours(const Neighbours *x, int64_t i, float *weight, const int size) {
    const int64_t heads = x->heads, room = per_head(heads), k = x->k;
    const int64_t *at = x->index + i * k;
    const uint8_t *valid = x->valid ? x->valid + i * k : NULL;
    const float *bias = x->bias ? x->bias + i * k * heads : NULL;
    float *inverse = weight + k * room, *logit = inverse + room, *of_rows = logit + for_logits(x);
    if (x->offsets.keys) row_biases(x, i, logit, of_rows, size);
    for (int64_t j = 0; j < k; j++) {
        float *w = weight + j * room;
        if (valid && !valid[j]) continue;
        dots(w, x->query + i * x->query_stride, x->key + at[j] * x->key_stride, heads, x->scale, size);
        if (bias)
            for (int64_t h = 0; h < heads; h++) w[h] += bias[j * heads + h];
        if (x->offsets.keys) add_offset(x, i, j, of_rows, w);
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

INLINE void neighbour_forward_one(const Neighbours *x, int64_t i, float *weight, float *out, const int size) {
    const int64_t k = x->k, heads = x->heads, room = per_head(heads), stride = x->value_stride;
    const int64_t *at = x->index + i * k;
    const uint8_t *used = x->valid ? x->valid + i * k : NULL;
    const float *inverse = weight + k * room;
    weigh_neighbours(x, i, weight, size);
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
    const uint8_t *valid, const float *bias, int64_t axes, int64_t f, int64_t nodes, const int64_t *first,
    const int64_t *row, const float *features, const float *offset_keys, const float *log_weight, float *out,
    float scale
) {
    const Offsets offsets = {axes, f, nodes, first, row, features, offset_keys, log_weight};
    const Neighbours x = {
        k, heads, query, query_stride, key, key_stride, value, value_stride, index, valid, bias, offsets, scale};
    const int64_t each = (k + 1) * per_head(heads) + for_logits(&x) + for_rows(&x);
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

/* Gradients of queries and, where they are needed, of biases, of the logits of offsets, of features and of the
 * logarithms of weights. */
typedef struct {
    float *query, *bias, *logit, *features, *log_weight;
} Grads;

/* The gradients of one query's offsets, from the slopes of all heads at each of its rows. */
INLINE void offsets_backward(const Neighbours *x, int64_t i, const float *logit, const float *slope, Grads d, const int size) {
    const Offsets *o = &x->offsets;
    const int64_t heads = x->heads, room = per_head(heads), f = o->f, from = i * o->first[o->axes] * f;
    for (int64_t a = 0; a < o->axes; a++)
        for (int64_t l = a * f; l < (a + 1) * f; l++) {
            float *dl = d.logit + (i * o->axes * f + l) * heads;
            for (int64_t h = 0; h < heads; h++) {
                float s = 0.0f;
                for (int64_t r = o->first[a]; r < o->first[a + 1]; r++)
                    s += slope[r * room + h] * o->features[from + r * f + l - a * f];
                dl[h] = s * x->scale;
                add_scaled(d.query + (i * heads + h) * size, o->keys + (l * heads + h) * size, dl[h], size);
            }
            for (int64_t r = o->first[a]; d.features && r < o->first[a + 1]; r++)
                d.features[from + r * f + l - a * f] = dot(slope + r * room, logit + l * room, heads);
        }
}

/* The gradients of a query and its offsets, and for each neighbour the slopes and weights of all heads, which its row
 * needs. */
INLINE void neighbour_backward_one(
    const Neighbours *x, int64_t i, float *weight, const float *out, const float *grad, Grads d, float *entries,
    const int size
) {
    const int64_t k = x->k, heads = x->heads, row = heads * size, room = per_head(heads), axes = x->offsets.axes;
    const int64_t *at = x->index + i * k;
    const float *g = grad + i * row;
    float *inverse = weight + k * room, *logit = inverse + room, *of_rows = logit + for_logits(x);
    float *mean = of_rows + for_rows(x), *slope = mean + room, *dq = d.query + i * row;
    weigh_neighbours(x, i, weight, size);
    dots(mean, g, out + i * row, heads, 1.0f, size);
    memset(dq, 0, sizeof(float) * row);
    memset(of_rows, 0, sizeof(float) * for_rows(x)); /* from here on, the slopes of rows */
    for (int64_t j = 0; j < k; j++) {
        if (d.log_weight) d.log_weight[i * k + j] = 0.0f;
        if (x->valid && !x->valid[i * k + j]) {
            if (d.bias) memset(d.bias + (i * k + j) * heads, 0, sizeof(float) * heads);
            continue;
        }
        const float *y = x->key + at[j] * x->key_stride, *v = x->value + at[j] * x->value_stride;
        float *w = weight + j * room, *entry = entries + (i * k + j) * 2 * heads;
        dots(slope, g, v, heads, 1.0f, size);
        for (int64_t h = 0; h < room; h += W) {
            store(w + h, load(w + h) * load(inverse + h));
            store(slope + h, load(w + h) * (load(slope + h) - load(mean + h)));
        }
        if (d.bias) memcpy(d.bias + (i * k + j) * heads, slope, sizeof(float) * heads);
        for (int64_t a = 0; a < axes && j < x->offsets.nodes; a++)
            add_scaled(of_rows + x->offsets.row[j * axes + a] * room, slope, 1.0f, heads);
        for (int64_t h = 0; h < heads; h++) {
            if (d.log_weight) d.log_weight[i * k + j] += slope[h];
            entry[h] = slope[h] * x->scale, entry[heads + h] = w[h];
            add_scaled(dq + h * size, y + h * size, entry[h], size);
        }
    }
    if (x->offsets.keys) offsets_backward(x, i, logit, of_rows, d, size);
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
    const int64_t *index, const uint8_t *valid, const float *bias, int64_t axes, int64_t f, int64_t nodes,
    const int64_t *first, const int64_t *row, const float *features, const float *offset_keys, const float *log_weight,
    const float *out, const float *grad, float *query_grad, float *row_grad, float *bias_grad, float *logit_grad,
    float *features_grad, float *log_weight_grad, float scale
) {
    const Offsets offsets = {axes, f, nodes, first, row, features, offset_keys, log_weight};
    const Neighbours x = {
        k, heads, query, query_stride, key, key_stride, value, value_stride, index, valid, bias, offsets, scale};
    const Grads d = {query_grad, bias_grad, logit_grad, features_grad, log_weight_grad};
    const int64_t each = (k + 3) * per_head(heads) + for_logits(&x) + for_rows(&x);
    int64_t *order, *start = by_row(&order, n * k, 1, rows, index, valid);
    float *memory = scratch(threads, each), *entries = malloc((2 * n * k * heads + 1) * sizeof(float));
    const int failed = !start || !memory || !entries;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            #pragma omp for schedule(dynamic, 64)
            for (int64_t i = 0; i < n; i++) {
                #define CALL(S) neighbour_backward_one( \
                    &x, i, own_part(memory, each), out, grad, d, entries, S)
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
