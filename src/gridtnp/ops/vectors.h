/* Shared by the C files: vectors of eight floats, products of small matrices, and OpenMP.
 *
 * Functions that Python calls get the number of threads and return whether they ran out of memory. All memory is
 * allocated before threads start, so that each function has one place where that can happen.
 */

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

#define INLINE static inline __attribute__((always_inline))

#define OUT_OF_MEMORY 1

/* Zeroed memory for all threads, `floats` each; NULL if there is not enough. */
INLINE float *scratch(int64_t threads, int64_t floats) { return calloc(threads, (floats + 16) * sizeof(float)); }

/* The part of this thread. */
INLINE float *own_part(float *memory, int64_t floats) { return memory + omp_get_thread_num() * (floats + 16); }

/* Vectors of eight floats, as an extension of GCC and Clang: portable, and lowered to the target's SIMD. */
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
#define W8 8

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec all(float x) { return (vec){x, x, x, x, x, x, x, x}; }

typedef float half __attribute__((vector_size(16)));

INLINE float sum(vec v) {
    half a[2];
    memcpy(a, &v, sizeof v);
    a[0] += a[1];
    return (a[0][0] + a[0][1]) + (a[0][2] + a[0][3]);
}

/* Products are computed in tiles of TALL × LANES sums, which fit into the vector registers: sixteen, or with AVX-512
 * 32 of twice the size. These are used where WIDE_TILES is defined, for rows that are long enough to fill them. */
#if defined(WIDE_TILES) && defined(__AVX512F__)
typedef float tile_vec __attribute__((vector_size(64)));
#define TALL 8
#else
typedef vec tile_vec;
#define TALL 6
#endif
#define ACROSS 2
#define LANES (ACROSS * (int)(sizeof(tile_vec) / sizeof(float)))

/* Round up to a multiple of LANES, so that loops need no remainder. */
INLINE int64_t filled(int64_t floats) { return (floats + LANES - 1) / LANES * LANES; }

INLINE vec larger(vec a, vec b) {
#ifdef __AVX__
    return __builtin_ia32_maxps256(a, b);
#else
    const ivec more = a > b;
    return (vec)(((ivec)a & more) | ((ivec)b & ~more));
#endif
}

#define LOG2E 1.44269504f

/* 2^x for x well below 128: the integer part goes into the exponent bits, the rest into a polynomial. */
INLINE vec exp2_8(vec x) {
    x = larger(all(-126.0f), x);
    const vec shifted = x + 12582912.0f; /* the low bits hold the nearest integer */
    const vec r = x - (shifted - 12582912.0f);
    vec p = r * 1.535336188e-4f + 1.339887440e-3f;
    p = p * r + 9.618437357e-3f;
    p = p * r + 5.550332471e-2f;
    p = p * r + 2.402264791e-1f;
    p = p * r + 6.931472029e-1f;
    p = p * r + 1.0f;
    return (vec)((ivec)p + (((ivec)shifted) << 23)); /* the shift drops the bits of the constant */
}

INLINE vec exp8(vec x) { return exp2_8(x * LOG2E); }

/* Specialised for common head sizes. */
#define FOR_SIZE(size, CALL) \
    switch (size) {          \
        case 4: CALL(4); break;   \
        case 8: CALL(8); break;   \
        case 16: CALL(16); break; \
        case 32: CALL(32); break; \
        case 64: CALL(64); break; \
        default: CALL(size);      \
    }

/* ---- products ------------------------------------------------------------------------------------- */

/* Round up to a multiple of TALL. */
INLINE int64_t tall(int64_t rows) { return (rows + TALL - 1) / TALL * TALL; }

/* One tile: y[r] = start[r] + Σ_k x[r, k] panel[k] for TALL rows of LANES columns. */
INLINE void tile(
    float *y, int64_t y_row, const float *start, int64_t start_row, const float *x, int64_t x_row, int64_t x_step,
    const float *panel, int64_t depth
) {
    tile_vec s[TALL][ACROSS], p[ACROSS];
    const int w = LANES / ACROSS;
    for (int r = 0; r < TALL; r++)
        for (int c = 0; c < ACROSS; c++) memcpy(&s[r][c], start + r * start_row + c * w, sizeof p[c]);
    for (int64_t k = 0; k < depth; k++) {
        for (int c = 0; c < ACROSS; c++) memcpy(&p[c], panel + k * LANES + c * w, sizeof p[c]);
        #pragma GCC unroll 8
        for (int r = 0; r < TALL; r++)
            for (int c = 0; c < ACROSS; c++) s[r][c] += x[r * x_row + k * x_step] * p[c];
    }
    for (int r = 0; r < TALL; r++)
        for (int c = 0; c < ACROSS; c++) memcpy(y + r * y_row + c * w, &s[r][c], sizeof p[c]);
}
