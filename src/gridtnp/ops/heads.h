/* Shared by attention to cells and to neighbours: products of heads, and entries sorted by row.
 *
 * A row is one token with all its heads, `heads * size` floats. Consecutive rows are `stride` floats apart, so
 * that keys and values can be views of one projection.
 */

#pragma once

#undef VECTOR_BITS
#define VECTOR_BITS 256 /* heads come in eights */
#include "vectors.h"

/* One float per head, rounded up to whole vectors. */
INLINE int64_t per_head(int64_t heads) { return (heads + W - 1) / W * W; }

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
    for (; size % W == 0 && h < heads; h += W) {
        vec p[W];
        #pragma GCC unroll 8
        for (int i = 0; i < W; i++) {
            const float *x = a + (h + i) * size, *z = b + (h + i) * size;
            p[i] = all(0.0f);
            for (int d = 0; d < size && h + i < heads; d += W) p[i] += load(x + d) * load(z + d);
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
