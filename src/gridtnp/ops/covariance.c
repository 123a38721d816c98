/* Covariance of a non-stationary Gaussian process between two sets of places, in double precision, as defined in
 * amortised/process.py.
 *
 * Places come as columns of a matrix: coordinates, latent coordinates, half of the squared stretch, amplitude times
 * stretch, trend. The correlation is a cubic polynomial between nodes of a table, equally spaced in the square root
 * of the distance.
 */

#include "vectors.h"

#define COLUMNS 256 /* at once: they stay in the cache */

/* One row of the result: a place of `n` against `number` of `m` others. */
static void one_row(
    double *restrict result, const double *a, int64_t n, const double *b, int64_t m, int64_t number,
    const double *restrict table, int64_t coordinates, int64_t latents, int64_t trends, int64_t nodes, double per_unit
) {
    double squared[COLUMNS], inverse[COLUMNS];
    const int64_t stretch = coordinates + latents, scale = stretch + 1;
    const double last = (double)nodes - 1e-6;
    for (int64_t j = 0; j < number; j++) squared[j] = 0;
    for (int64_t d = 0; d < stretch; d++) {
        for (int64_t j = 0; j < number; j++) {
            const double apart = a[d * n] - b[d * m + j];
            squared[j] += apart * apart;
        }
        if (d == coordinates - 1)
            for (int64_t j = 0; j < number; j++) {
                inverse[j] = 1 / (a[stretch * n] + b[stretch * m + j]);
                squared[j] *= inverse[j];
            }
    }
    for (int64_t j = 0; j < number; j++) {
        const double u = sqrt(sqrt(squared[j])) * per_unit;
        squared[j] = u < last ? u : last;
    }
    for (int64_t j = 0; j < number; j++) {
        const int32_t node = (int32_t)squared[j];
        const double t = squared[j] - node;
        const double found =
            ((table[node] * t + table[nodes + node]) * t + table[2 * nodes + node]) * t + table[3 * nodes + node];
        result[j] = found * inverse[j] * a[scale * n] * b[scale * m + j];
    }
    for (int64_t d = scale + 1; d < scale + 1 + trends; d++)
        for (int64_t j = 0; j < number; j++) result[j] += a[d * n] * b[d * m + j];
}

int process_covariance(
    int64_t threads, double *result, const double *a, int64_t n, const double *b, int64_t m, const double *table,
    int64_t coordinates, int64_t latents, int64_t trends, int64_t nodes, int64_t per_unit
) {
#pragma omp parallel for num_threads(threads) if (n * m > 1 << 16)
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j += COLUMNS)
            one_row(
                result + i * m + j, a + i, n, b + j, m, m - j < COLUMNS ? m - j : COLUMNS, table, coordinates, latents,
                trends, nodes, (double)per_unit);
    return 0;
}
