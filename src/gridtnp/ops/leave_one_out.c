/* Predictions of the last of a few points from the others, under several covariances, in double precision, as defined
 * in amortised/profile.py.
 *
 * Groups of points are the lanes of vectors, so that each factorisation of a block stays in the nearest cache.
 */

#include "vectors.h"

#define GROUPS 8 /* at once */
#define MOST 16  /* points of a group */

typedef double groups_vec __attribute__((vector_size(GROUPS * sizeof(double))));

INLINE int64_t at(int64_t row, int64_t column) { return row * (row + 1) / 2 + column; }

/* Some groups' numbers, and zeros in the other lanes. */
INLINE groups_vec load_groups(const double *p, int64_t number) {
    groups_vec v = {0};
    if (number == GROUPS) memcpy(&v, p, sizeof v);
    else memcpy(&v, p, number * sizeof(double));
    return v;
}

/* Cholesky factorisation of the lower triangles, and the values decorrelated, in place. */
static void factorise(groups_vec *k, groups_vec *y, int64_t points) {
    for (int64_t j = 0; j < points; j++) {
        groups_vec inverse;
        for (int64_t g = 0; g < GROUPS; g++) inverse[g] = 1 / sqrt(k[at(j, j)][g]);
        y[j] *= inverse;
        for (int64_t i = j; i < points; i++) k[at(i, j)] *= inverse;
        for (int64_t i = j + 1; i < points; i++) {
            const groups_vec factor = k[at(i, j)];
            for (int64_t c = j + 1; c <= i; c++) k[at(i, c)] -= factor * k[at(c, j)];
            y[i] -= factor * y[j];
        }
    }
}

/* `kernels` (pairs of points, kernels, groups) and `values` (points, groups); a candidate is the kernel `which` with
 * the variance `noise`. Results (candidates, groups): standardised errors and standard deviations. */
int leave_one_out(
    int64_t threads, double *error, double *std, const double *kernels, const double *values, const int64_t *which,
    const double *noise, int64_t groups, int64_t points, int64_t different, int64_t candidates
) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < candidates; c++)
        for (int64_t start = 0; start < groups; start += GROUPS) {
            const int64_t number = groups - start < GROUPS ? groups - start : GROUPS;
            const double *own = kernels + which[c] * groups + start;
            groups_vec k[MOST * (MOST + 1) / 2], y[MOST];
            for (int64_t pair = 0; pair < at(points, 0); pair++)
                k[pair] = load_groups(own + pair * different * groups, number);
            for (int64_t i = 0; i < points; i++) {
                k[at(i, i)] += noise[c];
                y[i] = load_groups(values + i * groups + start, number);
            }
            factorise(k, y, points);
            memcpy(error + c * groups + start, y + points - 1, number * sizeof(double));
            memcpy(std + c * groups + start, k + at(points - 1, points - 1), number * sizeof(double));
        }
    return 0;
}
