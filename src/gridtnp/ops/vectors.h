/* Shared by the C files: vectors, exponentials, products of small matrices, and OpenMP.
 *
 * Functions that Python calls get the number of threads and return whether they ran out of memory. All memory is
 * allocated before threads start, so that each function has one place where that can happen.
 */

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

#define INLINE static inline __attribute__((always_inline))

#define OUT_OF_MEMORY 1

/* Round up to a multiple of `of`. */
INLINE int64_t up_to(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

#define LINE 16 /* floats of a cache line: vectors that cross two of them take twice as long to load */

/* Zeroed memory that begins with a cache line; NULL if there is not enough. */
INLINE float *zeroed(int64_t floats) {
    const int64_t bytes = up_to(floats + 1, LINE) * (int64_t)sizeof(float);
    float *memory = aligned_alloc(LINE * sizeof(float), bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

/* Zeroed memory for all threads, `floats` each. */
INLINE float *scratch(int64_t threads, int64_t floats) { return zeroed(threads * up_to(floats, LINE)); }

/* The part of this thread. */
INLINE float *own_part(float *memory, int64_t floats) { return memory + omp_get_thread_num() * up_to(floats, LINE); }

/* Vectors as wide as the processor's, as an extension of GCC and Clang: portable, and lowered to the target's SIMD,
 * where a vector that is wider becomes several. VECTOR_BITS forces a width. */
#ifndef VECTOR_BITS
#if defined(__AVX512F__)
#define VECTOR_BITS 512
#elif defined(__AVX__)
#define VECTOR_BITS 256
#else
#define VECTOR_BITS 128
#endif
#endif
typedef float vec __attribute__((vector_size(VECTOR_BITS / 8)));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BITS / 8)));
#define W (VECTOR_BITS / 32) /* floats of a vector */

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec all(float x) { return x - (vec){0}; }

typedef float quarter __attribute__((vector_size(16)));

INLINE float sum(vec v) {
    quarter a[W / 4];
    memcpy(a, &v, sizeof v);
    for (int n = W / 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) a[i] += a[i + n];
    return (a[0][0] + a[0][1]) + (a[0][2] + a[0][3]);
}

INLINE vec larger(vec a, vec b) {
#if VECTOR_BITS == 512 && defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif VECTOR_BITS == 256 && defined(__AVX__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    const ivec more = a > b;
    return (vec)(((ivec)a & more) | ((ivec)b & ~more));
#endif
}

#define LOG2E 1.44269504f

/* 2^x for x well below 128: the integer part goes into the exponent bits, the rest into a polynomial. */
INLINE vec exp2_of(vec x) {
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

INLINE vec exp_of(vec x) { return exp2_of(x * LOG2E); }

/* Specialised for common head sizes. */
#define FOR_SIZE(size, CALL) \
    switch (size) {          \
        case 8: CALL(8); break;   \
        case 16: CALL(16); break; \
        case 32: CALL(32); break; \
        default: CALL(size);      \
    }

/* ---- products ------------------------------------------------------------------------------------- */

/* Products are computed in tiles of TALL × LANES sums, which fit into the vector registers: sixteen, or with AVX-512
 * 32. */
#define TALL (VECTOR_BITS == 512 ? 12 : 6)
#define ACROSS 2
#define LANES (ACROSS * W)

/* Round up to a multiple of LANES, so that loops need no remainder. */
INLINE int64_t filled(int64_t floats) { return up_to(floats, LANES); }

/* Round up to a multiple of TALL. */
INLINE int64_t tall(int64_t rows) { return up_to(rows, TALL); }

/* Compilers would load a vector again for each product that it is used in. */
#if VECTOR_BITS == 512 && defined(__AVX512F__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#elif (VECTOR_BITS == 256 && defined(__AVX__)) || (VECTOR_BITS == 128 && defined(__SSE2__))
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#else
#define IN_REGISTER(v)
#endif

/* What becomes of a tile's sums before they are stored: nothing, ReLU, the sum with other rows, or zero where other
 * rows are not positive, which is the derivative of ReLU. */
enum { AS_IT_IS, POSITIVE, PLUS, GATED };

INLINE vec finish(vec v, const float *other, int64_t at, const int end) {
    if (end == POSITIVE) return larger(all(0.0f), v); /* keeps NaN */
    if (end == PLUS) return v + load(other + at);
    if (end == GATED) return (vec)((ivec)v & (load(other + at) > 0.0f));
    return v;
}

/* One tile: y[r] = start + Σ_k x[r, k] panel[k] for `high` rows of `across` vectors, both known to the compiler, and
 * then its `end`. x[r, k] is x[r * x_row + k * x_step]; rows of the other matrices are as far apart as their arguments
 * say. Adding other rows last keeps rounding errors of long sums small that are computed in parts. */
INLINE void tile_of(
    float *y, int64_t y_row, const float *start, const float *other, int64_t other_row, const int end, const float *x,
    int64_t x_row, int64_t x_step, const float *panel, int64_t panel_row, int64_t depth, const int high,
    const int across
) {
    vec s[12][3], p[3];
    #pragma GCC unroll 12
    for (int r = 0; r < high; r++)
        for (int c = 0; c < across; c++) s[r][c] = start ? load(start + c * W) : all(0.0f);
    for (int64_t k = 0; k < depth; k++) {
        for (int c = 0; c < across; c++) {
            p[c] = load(panel + k * panel_row + c * W);
            IN_REGISTER(p[c]);
        }
        #pragma GCC unroll 12
        for (int r = 0; r < high; r++)
            for (int c = 0; c < across; c++) s[r][c] += x[r * x_row + k * x_step] * p[c];
    }
    #pragma GCC unroll 12
    for (int r = 0; r < high; r++)
        for (int c = 0; c < across; c++)
            store(y + r * y_row + c * W, finish(s[r][c], other, r * other_row + c * W, end));
}
