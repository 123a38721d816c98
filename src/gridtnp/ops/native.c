/* Attention on small sets for the processor, in plain C and single precision: what reference.py defines.
 *
 * A row is a token and holds all heads side by side, `heads * size` floats. Consecutive rows are `stride`
 * floats apart, so that keys and values are read out of one projection without a copy. Where several rows
 * are added into one, threads share the work by head, so that no two write to the same place; windows own
 * their rows, and are shared out whole. Backward passes compute the weights again instead of keeping them.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_max_threads() 1
#define omp_get_thread_num() 0
#endif

#define INLINE static inline __attribute__((always_inline))

/* The common head sizes are compiled with the size known. */
#define FOR_SIZE(size, CALL) \
    switch (size) {          \
        case 4: CALL(4); break;   \
        case 8: CALL(8); break;   \
        case 16: CALL(16); break; \
        case 32: CALL(32); break; \
        case 64: CALL(64); break; \
        default: CALL(size);      \
    }

/* Eight floats at a time; compilers make of it what the processor has. */
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
#define W8 8

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec all(float x) { return (vec){} + x; }

typedef float half __attribute__((vector_size(16)));

INLINE float sum(vec v) {
    half a[2];
    memcpy(a, &v, sizeof v);
    a[0] += a[1];
    return (a[0][0] + a[0][1]) + (a[0][2] + a[0][3]);
}

/* exp for arguments that are not large: 2^n by the exponent's bits, what is left by a polynomial. */
INLINE vec exp8(vec x) {
    const ivec small = x < -87.0f;
    x = (vec)(((ivec)all(-87.0f) & small) | ((ivec)x & ~small));
    const vec shifted = x * 1.44269504f + 12582912.0f; /* the low bits are the nearest whole number */
    const vec n = shifted - 12582912.0f;
    const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vec)((ivec)p + (((ivec)shifted) << 23)); /* times 2^n; the constant's bits fall off the top */
}

#define LANES (2 * W8)

/* Room for so many floats and some to fill up, so that loops need no ends. */
INLINE int64_t filled(int64_t floats) { return (floats + LANES - 1) / LANES * LANES; }

/* The same for one number per head. */
INLINE int64_t per_head(int64_t heads) { return (heads + W8 - 1) / W8 * W8; }

/* y[i] = exp(y[i] - top) for i < n, and their sum; minus infinity becomes zero. y has room for filled(n). */
INLINE float exp_all(float *y, float top, int n) {
    vec total = all(0.0f);
    for (int i = n; i % W8; i++) y[i] = -INFINITY;
    for (int i = 0; i < n; i += W8) {
        const vec x = load(y + i);
        const ivec there = x != -INFINITY; /* exp never gets to zero, a mask does */
        const vec e = (vec)((ivec)exp8(x - top) & there);
        store(y + i, e);
        total += e;
    }
    return sum(total);
}

INLINE float largest(const float *y, int n) {
    float top = y[0];
    for (int i = 1; i < n; i++) top = y[i] > top ? y[i] : top;
    return top;
}

INLINE float dot(const float *a, const float *b, const int size) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int d = 0;
    for (; d + W8 <= size; d += W8) s += load(a + d) * load(b + d);
    for (; d < size; d++) rest += a[d] * b[d];
    return size < W8 ? rest : sum(s) + rest;
}

/* The sums of eight vectors, as one vector. */
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
    for (int i = 0; i < W8; i++) s[i] = sum(p[i]);
    return s;
#endif
}

/* y[h] = a_h · b_h for every head, `scale` times; y has room for per_head(heads). */
INLINE void dots(float *y, const float *a, const float *b, int64_t heads, float scale, const int size) {
    int64_t h = 0;
    for (; size % W8 == 0 && h + W8 <= heads; h += W8) {
        vec p[W8];
        #pragma GCC unroll 8
        for (int i = 0; i < W8; i++) {
            const float *x = a + (h + i) * size, *z = b + (h + i) * size;
            p[i] = load(x) * load(z);
            for (int d = W8; d < size; d += W8) p[i] += load(x + d) * load(z + d);
        }
        store(y + h, sums(p) * scale);
    }
    for (; h < heads; h++) y[h] = dot(a + h * size, b + h * size, size) * scale;
}

INLINE vec larger(vec a, vec b) {
    const ivec more = a > b;
    return (vec)(((ivec)a & more) | ((ivec)b & ~more));
}

INLINE void add_scaled(float *y, const float *x, const float a, const int size) {
    int d = 0;
    for (; d + W8 <= size; d += W8) store(y + d, load(y + d) + load(x + d) * a);
    for (; d < size; d++) y[d] += a * x[d];
}

INLINE void scale_by(float *y, const float a, const int size) {
    int d = 0;
    for (; d + W8 <= size; d += W8) store(y + d, load(y + d) * a);
    for (; d < size; d++) y[d] *= a;
}

/* ---- several threads add to rows that others may want, too ------------------------------------------- */

#define SHARES 4 /* so many at most: a share may need as much memory again */

/* Where the shares of a list of entries add to: `rows` rows of `row` floats at `sum`, the entry e to row at[e].
 * A share has sums of its own for the rows from its lowest up to `own`, where an earlier share may write, and
 * adds to the rest directly. Entries in the order of their rows have few such rows between them. */
typedef struct {
    float *sum, *apart;
    int64_t first, last, low, own, row;
} Share;

INLINE float *row_of(const Share *share, int64_t r) {
    return r < share->own ? share->apart + (r - share->low) * share->row : share->sum + r * share->row;
}

/* `n` entries, `k` at a time, are shared out; returns how many shares there are. */
static int64_t share_out(
    Share *shares, int64_t n, int64_t k, const int64_t *at, const uint8_t *valid, float *sum, int64_t row
) {
    const int64_t threads = omp_get_max_threads(), count = threads < SHARES ? threads : SHARES;
    int64_t taken = 0; /* rows below it may be written by an earlier share */
    for (int64_t s = 0; s < count; s++) {
        int64_t low = INT64_MAX, high = 0;
        const int64_t first = n * s / count, last = n * (s + 1) / count;
        for (int64_t e = first * k; e < last * k; e++) {
            if (valid && !valid[e]) continue;
            if (at[e] < low) low = at[e];
            if (at[e] >= high) high = at[e] + 1;
        }
        const int64_t own = low < taken ? (high < taken ? high : taken) : 0;
        float *apart = own ? calloc((own - low) * row, sizeof(float)) : NULL;
        shares[s] = (Share){sum, apart, first, last, low, own, row};
        taken = high > taken ? high : taken;
    }
    return count;
}

static void bring_together(Share *shares, int64_t count) {
    for (int64_t s = 0; s < count; s++) {
        const Share share = shares[s];
        #pragma omp parallel for schedule(static)
        for (int64_t r = share.low; r < share.own; r++)
            add_scaled(share.sum + r * share.row, share.apart + (r - share.low) * share.row, 1.0f, share.row);
        free(share.apart);
    }
}

/* ---- every query attends to the rows at its own indices ------------------------------------------ */

/* The weights of one query's neighbours, all heads side by side, neighbour after neighbour; times `inverse`
 * those of a head sum to one. What is not valid weighs nothing. There is room for per_head(heads) each. */
INLINE void neighbour_weights(
    float *weight, float *inverse, const float *q, const float *key, int64_t key_stride, const int64_t *at,
    const uint8_t *valid, const float *bias, int64_t heads, int64_t k, float scale, const int size
) {
    const int64_t room = per_head(heads);
    for (int64_t j = 0; j < k; j++) {
        float *w = weight + j * room;
        dots(w, q, key + at[j] * key_stride, heads, scale, size);
        if (bias)
            for (int64_t h = 0; h < heads; h++) w[h] += bias[j * heads + h];
    }
    for (int64_t h = 0; h < heads; h += W8) {
        vec top = all(-INFINITY), total = all(0.0f);
        for (int64_t j = 0; j < k; j++)
            if (!valid || valid[j]) top = larger(load(weight + j * room + h), top);
        for (int64_t j = 0; j < k; j++) {
            vec e = all(0.0f);
            if (!valid || valid[j]) e = exp8(load(weight + j * room + h) - top);
            store(weight + j * room + h, e);
            total += e;
        }
        for (int l = 0; l < W8; l++) inverse[h + l] = total[l] == 0.0f ? 0.0f : 1.0f / total[l];
    }
}

INLINE void neighbour_forward_sized(
    int64_t n, int64_t k, int64_t heads, const float *query, int64_t query_stride, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, float *out, float scale, const int size
) {
    const int64_t room = per_head(heads); /* weights of all heads side by side, neighbour after neighbour */
    #pragma omp parallel
    {
        float *weight = calloc((k + 1) * room, sizeof(float)), *inverse = weight + k * room;
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < n; i++) {
            const int64_t *at = index + i * k;
            neighbour_weights(
                weight, inverse, query + i * query_stride, key, key_stride, at, valid ? valid + i * k : NULL,
                bias ? bias + i * k * heads : NULL, heads, k, scale, size);
            for (int64_t h = 0; h < heads; h++) {
                float *o = out + (i * heads + h) * size;
                int d = 0;
                for (; d + 2 * W8 <= size; d += 2 * W8) {
                    vec a = all(0.0f), b = a;
                    for (int64_t j = 0; j < k; j++) {
                        const float *v = value + at[j] * value_stride + h * size + d;
                        a += load(v) * weight[j * room + h];
                        b += load(v + W8) * weight[j * room + h];
                    }
                    store(o + d, a * inverse[h]);
                    store(o + d + W8, b * inverse[h]);
                }
                for (; d < size; d++) {
                    float a = 0.0f;
                    for (int64_t j = 0; j < k; j++)
                        a += value[at[j] * value_stride + h * size + d] * weight[j * room + h];
                    o[d] = a * inverse[h];
                }
            }
        }
        free(weight);
    }
}

void neighbour_forward(
    int64_t n, int64_t k, int64_t heads, int64_t size, const float *query, int64_t query_stride, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, float *out, float scale
) {
    #define CALL(S) neighbour_forward_sized(n, k, heads, query, query_stride, key, key_stride, value, \
                                            value_stride, index, valid, bias, out, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

INLINE void neighbour_backward_sized(
    int64_t n, int64_t k, int64_t heads, const float *query, int64_t query_stride, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, const float *out, const float *grad, float *query_grad,
    float *row_grad, float *bias_grad, float scale, const int size
) {
    const int64_t row = heads * size, room = per_head(heads);
    Share shares[SHARES];
    const int64_t count = share_out(shares, n, k, index, valid, row_grad, 2 * row);
    #pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < count; s++) {
        float *weight = calloc((k + 3) * room, sizeof(float)), *inverse = weight + k * room;
        float *mean = inverse + room, *slope = mean + room;
        for (int64_t i = shares[s].first; i < shares[s].last; i++) {
            const int64_t *at = index + i * k;
            const float *q = query + i * query_stride, *g = grad + i * row;
            float *dq = query_grad + i * row;
            neighbour_weights(
                weight, inverse, q, key, key_stride, at, valid ? valid + i * k : NULL,
                bias ? bias + i * k * heads : NULL, heads, k, scale, size);
            dots(mean, g, out + i * row, heads, 1.0f, size);
            memset(dq, 0, sizeof(float) * row);
            for (int64_t j = 0; j < k; j++) {
                if (valid && !valid[i * k + j]) {
                    if (bias_grad) memset(bias_grad + (i * k + j) * heads, 0, sizeof(float) * heads);
                    continue;
                }
                const float *x = key + at[j] * key_stride, *v = value + at[j] * value_stride;
                float *dx = row_of(&shares[s], at[j]), *dv = dx + row, *w = weight + j * room;
                dots(slope, g, v, heads, 1.0f, size);
                for (int64_t h = 0; h < room; h += W8) {
                    store(w + h, load(w + h) * load(inverse + h));
                    store(slope + h, load(w + h) * (load(slope + h) - load(mean + h)));
                }
                if (bias_grad) memcpy(bias_grad + (i * k + j) * heads, slope, sizeof(float) * heads);
                for (int64_t h = 0; h < heads; h++) {
                    add_scaled(dv + h * size, g + h * size, w[h], size);
                    add_scaled(dx + h * size, q + h * size, slope[h] * scale, size);
                    add_scaled(dq + h * size, x + h * size, slope[h] * scale, size);
                }
            }
        }
        free(weight);
    }
    bring_together(shares, count);
}

void neighbour_backward(
    int64_t n, int64_t k, int64_t heads, int64_t size, const float *query, int64_t query_stride, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *index,
    const uint8_t *valid, const float *bias, const float *out, const float *grad, float *query_grad,
    float *row_grad, float *bias_grad, float scale
) {
    #define CALL(S) neighbour_backward_sized(n, k, heads, query, query_stride, key, key_stride, value, \
        value_stride, index, valid, bias, out, grad, query_grad, row_grad, bias_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* ---- every cell attends to its own points and to what it already knows ---------------------------- */

/* `out` and `log_sum` come in as the cells' own values and logits and go out with the points added. */
INLINE void cell_forward_sized(
    int64_t n, int64_t k, int64_t heads, int64_t cells, const float *query, const float *key, int64_t key_stride,
    const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid, float *out,
    float *log_sum, float *logit, float *top, float *total, float scale, const int size
) {
    const int64_t row = (int64_t)heads * size;
    const int threads = omp_get_max_threads(), shares = heads < threads ? heads : threads;
    #pragma omp parallel for schedule(static)
    for (int share = 0; share < shares; share++) {
        const int first = heads * share / shares, last = heads * (share + 1) / shares;
        for (int64_t c = 0; c < cells; c++)
            for (int h = first; h < last; h++) top[c * heads + h] = log_sum[c * heads + h];
        for (int64_t e = 0; e < n * k; e++) {
            if (valid && !valid[e]) continue;
            const int64_t c = cell[e];
            for (int h = first; h < last; h++) {
                const float s =
                    dot(query + c * row + h * size, key + e / k * key_stride + h * size, size) * scale;
                logit[e * heads + h] = s;
                if (s > top[c * heads + h]) top[c * heads + h] = s;
            }
        }
        for (int64_t c = 0; c < cells; c++)
            for (int h = first; h < last; h++) {
                const float w = expf(log_sum[c * heads + h] - top[c * heads + h]);
                total[c * heads + h] = w;
                scale_by(out + c * row + h * size, w, size);
            }
        for (int64_t e = 0; e < n * k; e++) {
            if (valid && !valid[e]) continue;
            const int64_t c = cell[e];
            float weight[heads + W8];
            for (int h = first; h < last; h++)
                weight[h - first] = logit[e * heads + h] - top[c * heads + h];
            exp_all(weight, 0.0f, last - first);
            for (int h = first; h < last; h++) {
                const float w = weight[h - first];
                total[c * heads + h] += w;
                add_scaled(out + c * row + h * size, value + e / k * value_stride + h * size, w, size);
            }
        }
        for (int64_t c = 0; c < cells; c++)
            for (int h = first; h < last; h++) {
                const float inverse = 1.0f / total[c * heads + h];
                scale_by(out + c * row + h * size, inverse, size);
                log_sum[c * heads + h] = top[c * heads + h] + logf(total[c * heads + h]);
            }
    }
}

void cell_forward(
    int64_t n, int64_t k, int64_t heads, int64_t size, int64_t cells, const float *query, const float *key,
    int64_t key_stride, const float *value, int64_t value_stride, const int64_t *cell,
    const uint8_t *valid, float *out, float *log_sum, float *logit, float *top, float *total, float scale
) {
    #define CALL(S) cell_forward_sized(n, k, heads, cells, query, key, key_stride, value, value_stride, \
                                       cell, valid, out, log_sum, logit, top, total, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* `mean` is grad · out less the gradient of the log-sum, per cell and head. */
INLINE void cell_backward_sized(
    int64_t n, int64_t k, int64_t heads, const float *query, const float *key, int64_t key_stride,
    const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid,
    const float *log_sum, const float *grad, const float *mean, float *query_grad, float *point_grad,
    float scale, const int size
) {
    const int64_t row = heads * size, room = per_head(heads);
    Share shares[SHARES];
    const int64_t count = share_out(shares, n, k, cell, valid, query_grad, row);
    #pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < count; s++) {
        float *weight = calloc(2 * room, sizeof(float)), *slope = weight + room;
        for (int64_t p = shares[s].first; p < shares[s].last; p++) {
            const float *x = key + p * key_stride, *v = value + p * value_stride;
            float *dx = point_grad + 2 * p * row, *dv = dx + row;
            memset(dx, 0, sizeof(float) * 2 * row);
            for (int64_t e = p * k; e < (p + 1) * k; e++) {
                if (valid && !valid[e]) continue;
                const int64_t c = cell[e];
                const float *q = query + c * row, *g = grad + c * row;
                float *dq = row_of(&shares[s], c);
                dots(weight, q, x, heads, scale, size);
                for (int64_t h = 0; h < heads; h++) weight[h] -= log_sum[c * heads + h];
                exp_all(weight, 0.0f, heads);
                dots(slope, g, v, heads, 1.0f, size);
                for (int64_t h = 0; h < heads; h++) {
                    const float w = weight[h], d = w * (slope[h] - mean[c * heads + h]) * scale;
                    add_scaled(dv + h * size, g + h * size, w, size);
                    add_scaled(dx + h * size, q + h * size, d, size);
                    add_scaled(dq + h * size, x + h * size, d, size);
                }
            }
        }
        free(weight);
    }
    bring_together(shares, count);
}

void cell_backward(
    int64_t n, int64_t k, int64_t heads, int64_t size, const float *query, const float *key, int64_t key_stride,
    const float *value, int64_t value_stride, const int64_t *cell, const uint8_t *valid,
    const float *log_sum, const float *grad, const float *mean, float *query_grad, float *point_grad,
    float scale
) {
    #define CALL(S) cell_backward_sized(n, k, heads, query, key, key_stride, value, value_stride, cell, \
                                        valid, log_sum, grad, mean, query_grad, point_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* ---- the grid points of a window attend to each other --------------------------------------------- */

#define BLOCK 4 /* rows of a product computed together */
/* c[i][j] = Σ_d a[i][d] b[d][j]: i < rows (a multiple of BLOCK), j < w (a multiple of LANES) */
INLINE void product_small_depth(float *c, const float *a, const float *b, int rows, int w, const int size) {
    for (int i = 0; i < rows; i += BLOCK)
        for (int j = 0; j < w; j += LANES) {
            vec s00 = all(0.0f), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
            const float *x = a + i * size;
            for (int d = 0; d < size; d++) {
                const vec y0 = load(b + d * w + j), y1 = load(b + d * w + j + W8);
                s00 += y0 * x[d], s01 += y1 * x[d];
                s10 += y0 * x[size + d], s11 += y1 * x[size + d];
                s20 += y0 * x[2 * size + d], s21 += y1 * x[2 * size + d];
                s30 += y0 * x[3 * size + d], s31 += y1 * x[3 * size + d];
            }
            float *o = c + i * w + j;
            store(o, s00), store(o + W8, s01), store(o + w, s10), store(o + w + W8, s11);
            o += 2 * w;
            store(o, s20), store(o + W8, s21), store(o + w, s30), store(o + w + W8, s31);
        }
}

/* c[i][d] = Σ_j p[i][j] y[j][d] over j < points; with `across` set, p is read as its transpose */
INLINE void product_small_width(
    float *c, const float *p, const float *y, int rows, int points, int w, const int across, const int size
) {
    const int step = across ? w : 1, next = across ? 1 : w; /* along j, along i */
    for (int i = 0; i < rows; i += BLOCK) {
        const float *x = p + i * next;
        int d = 0;
        for (; d + W8 <= size; d += 2 * W8 <= size - d ? 2 * W8 : W8) {
            const int both = 2 * W8 <= size - d;
            vec s00 = all(0.0f), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
            for (int j = 0; j < points; j++) {
                const float *at = x + j * step;
                const vec y0 = load(y + j * size + d), y1 = both ? load(y + j * size + d + W8) : y0;
                s00 += y0 * at[0], s10 += y0 * at[next], s20 += y0 * at[2 * next], s30 += y0 * at[3 * next];
                s01 += y1 * at[0], s11 += y1 * at[next], s21 += y1 * at[2 * next], s31 += y1 * at[3 * next];
            }
            float *o = c + i * size + d;
            store(o, s00), store(o + size, s10), store(o + 2 * size, s20), store(o + 3 * size, s30);
            if (both) {
                o += W8;
                store(o, s01), store(o + size, s11), store(o + 2 * size, s21), store(o + 3 * size, s31);
            }
        }
        for (; d < size; d++)
            for (int r = 0; r < BLOCK; r++) {
                float s = 0.0f;
                for (int j = 0; j < points; j++) s += x[r * next + j * step] * y[j * size + d];
                c[(i + r) * size + d] = s;
            }
    }
}

/* The window's rows of one head side by side, zeros to fill up. */
INLINE void collect(
    float *rows, const float *from, int64_t stride, const int32_t *at, int points, int w, const int size
) {
    for (int i = 0; i < points; i++) memcpy(rows + i * size, from + at[i] * stride, sizeof(float) * size);
    memset(rows + points * size, 0, sizeof(float) * size * (w - points));
}

INLINE void transpose(float *columns, const float *rows, int w, const int size) {
    for (int i = 0; i < w; i++)
        for (int d = 0; d < size; d++) columns[d * w + i] = rows[i * size + d];
}

INLINE void window_weights(
    float *p, const float *q, const float *key_columns, const uint8_t *label, const float *bias, int points,
    int w, float scale, const int size
) {
    product_small_depth(p, q, key_columns, w, w, size);
    for (int i = 0; i < points; i++) {
        float *s = p + i * w;
        for (int j = 0; j < w; j += W8) store(s + j, load(s + j) * scale);
        if (bias)
            for (int j = 0; j < points; j++) s[j] += bias[i * points + j];
        if (label)
            for (int j = 0; j < points; j++) s[j] = label[j] == label[i] ? s[j] : -INFINITY;
        for (int j = points; j < w; j++) s[j] = -INFINITY;
        vec high = load(s);
        for (int j = W8; j < w; j += W8) {
            high = larger(load(s + j), high);
        }
        const float inverse = 1.0f / exp_all(s, largest((float *)&high, W8), w);
        for (int j = 0; j < w; j += W8) store(s + j, load(s + j) * inverse);
    }
    memset(p + points * w, 0, sizeof(float) * w * (w - points));
}

/* Labels matter only where they differ. */
INLINE const uint8_t *labels_of(const uint8_t *labels, int64_t window, int64_t points) {
    if (!labels) return NULL;
    labels += window * points;
    for (int64_t i = 1; i < points; i++)
        if (labels[i] != labels[0]) return labels;
    return NULL;
}

INLINE void window_forward_sized(
    int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float *out, float scale, const int size
) {
    const int64_t w = filled(points);
    #pragma omp parallel
    {
        float *q = malloc(sizeof(float) * (5 * w * size + w * w)), *k = q + w * size, *kt = k + w * size;
        float *v = kt + w * size, *o = v + w * size, *p = o + w * size;
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < batch * windows; task++) {
            const int64_t base = task / windows * cells;
            const int32_t *at = rows + task % windows * points;
            const uint8_t *label = labels_of(labels, task % windows, points);
            for (int64_t h = 0; h < heads; h++) {
                collect(q, query + base * stride + h * size, stride, at, points, w, size);
                collect(k, key + base * stride + h * size, stride, at, points, w, size);
                collect(v, value + base * stride + h * size, stride, at, points, w, size);
                transpose(kt, k, w, size);
                const float *b = bias ? bias + h * points * points : NULL;
                window_weights(p, q, kt, label, b, points, w, scale, size);
                product_small_width(o, p, v, w, points, w, 0, size);
                for (int64_t i = 0; i < points; i++)
                    memcpy(out + ((base + at[i]) * heads + h) * size, o + i * size, sizeof(float) * size);
            }
        }
        free(q);
    }
}

void window_forward(
    int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, float *out, float scale
) {
    #define CALL(S) window_forward_sized(batch, windows, points, heads, cells, query, key, value, stride, \
                                         rows, labels, bias, out, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}

/* Gradients go to rows of query, key and value side by side, `3 * heads * size` floats each. */
INLINE void window_backward_sized(
    int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, const float *grad, float *into, float *bias_grad, float scale, const int size
) {
    const int64_t w = filled(points), row = heads * size, threads = omp_get_max_threads();
    const int64_t pairs = bias_grad ? heads * points * points : 0;
    float *apart = calloc(threads * pairs + 1, sizeof(float)); /* every thread's share of the bias's gradient */
    #pragma omp parallel
    {
        float *q = malloc(sizeof(float) * (7 * w * size + 2 * w * w)), *k = q + w * size, *kt = k + w * size;
        float *v = kt + w * size, *vt = v + w * size, *g = vt + w * size, *o = g + w * size;
        float *p = o + w * size, *s = p + w * w;
        float *own_bias_grad = apart + omp_get_thread_num() * pairs;
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < batch * windows; task++) {
            const int64_t base = task / windows * cells;
            const int32_t *at = rows + task % windows * points;
            const uint8_t *label = labels_of(labels, task % windows, points);
            for (int64_t h = 0; h < heads; h++) {
                collect(q, query + base * stride + h * size, stride, at, points, w, size);
                collect(k, key + base * stride + h * size, stride, at, points, w, size);
                collect(v, value + base * stride + h * size, stride, at, points, w, size);
                collect(g, grad + base * row + h * size, row, at, points, w, size);
                transpose(kt, k, w, size);
                transpose(vt, v, w, size);
                const float *b = bias ? bias + h * points * points : NULL;
                window_weights(p, q, kt, label, b, points, w, scale, size);
                product_small_depth(s, g, vt, w, w, size);
                for (int64_t i = 0; i < w; i++) {
                    float *si = s + i * w, *pi = p + i * w;
                    const vec mean = all(dot(pi, si, w));
                    for (int64_t j = 0; j < w; j += W8)
                        store(si + j, load(pi + j) * (load(si + j) - mean));
                }
                if (bias_grad)
                    for (int64_t i = 0; i < points; i++)
                        add_scaled(own_bias_grad + (h * points + i) * points, s + i * w, 1.0f, points);
                for (int part = 0; part < 3; part++) {
                    if (part == 0) product_small_width(o, s, k, w, points, w, 0, size);
                    if (part == 1) product_small_width(o, s, q, w, points, w, 1, size);
                    if (part == 2) product_small_width(o, p, g, w, points, w, 1, size);
                    if (part < 2) scale_by(o, scale, points * size);
                    float *to = into + base * 3 * row + part * row + h * size;
                    for (int64_t i = 0; i < points; i++)
                        memcpy(to + at[i] * 3 * row, o + i * size, sizeof(float) * size);
                }
            }
        }
        free(q);
    }
    for (int64_t thread = 0; thread < threads; thread++)
        for (int64_t i = 0; i < pairs; i++) bias_grad[i] += apart[thread * pairs + i];
    free(apart);
}

void window_backward(
    int64_t batch, int64_t windows, int64_t points, int64_t heads, int64_t size, int64_t cells, const float *query,
    const float *key, const float *value, int64_t stride, const int32_t *rows, const uint8_t *labels,
    const float *bias, const float *grad, float *into, float *bias_grad, float scale
) {
    #define CALL(S) window_backward_sized(batch, windows, points, heads, cells, query, key, value, stride, \
                                          rows, labels, bias, grad, into, bias_grad, scale, S)
    FOR_SIZE(size, CALL)
    #undef CALL
}
