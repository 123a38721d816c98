/* Sums with squared-exponential kernels between points and a grid in float32, as defined in kernels.py.
 *
 * The exponent at row r and column c of the grid is -½ (apart[r] + precision * d²), where d² is across[c], or on the
 * sphere the squared arc of the haversine rows[r] + cosines[r] * across[c]. Points come in blocks that are close to
 * each other. Grid points where the weight of every point of a block is below TINY of its largest are left out, and
 * other weights below that are zero. Tables of a block are [row or column][point], so that vectors hold points.
 */

#include "vectors.h"

#define POINTS (VECTOR_BITS == 512 ? 96 : 48) /* of a block: a multiple of LANES and TALL */
#define NODES 96                              /* grid points whose weights are computed at once: a multiple of TALL */
#define REACH 36.841361f                      /* -2 log(TINY), TINY being 1e-8 */
#define DEGREES2 3282.806350f                 /* (180 / π)² */

typedef struct {
    int64_t n, rows, columns; /* points of a batch element, and the shape of the grid */
    int64_t blocks;           /* of a batch element */
    int64_t floats;           /* of a block's tables */
    float precision;
    int sphere;
    float *tables;
} Kernel;

/* The tables of a block, and what limits its reach: no grid point is used where nearest[c] > furthest[r]. */
typedef struct {
    float *apart, *rows, *cosines, *across, *limit, *nearest, *furthest;
} Block;

INLINE Block block_at(const Kernel *k, int64_t block) {
    Block b;
    b.apart = k->tables + block * k->floats;
    b.rows = b.apart + k->rows * POINTS;
    b.cosines = b.rows + (k->sphere ? k->rows * POINTS : 0);
    b.across = b.cosines + (k->sphere ? k->rows * POINTS : 0);
    b.limit = b.across + k->columns * POINTS;
    b.nearest = b.limit + POINTS;
    b.furthest = b.nearest + k->columns;
    return b;
}

/* The squared arc in degrees of haversines up to one half. */
INLINE vec squared_arc(vec h) {
    vec p = h * 0.37240246f - 0.41848660f;
    p = p * h + 0.32747266f;
    p = p * h - 0.03063233f;
    p = p * h + 0.09856161f;
    p = p * h + 0.11250155f;
    p = p * h + 0.17786877f;
    p = p * h + 0.33333156f;
    p = p * h + 1.0f;
    return p * h * (4.0f * DEGREES2);
}

INLINE vec smaller(vec a, vec b) { return -larger(-a, -b); }

/* d² of all points of a block, at vector i. */
INLINE vec squared_distance(const Kernel *k, const Block *b, int64_t r, int64_t c, int64_t i) {
    const vec across = load(b->across + c * POINTS + i);
    if (!k->sphere) return across;
    const vec h = load(b->rows + r * POINTS + i) + load(b->cosines + r * POINTS + i) * across;
    return squared_arc(smaller(h, all(0.5f)));
}

/* ---- tables ----------------------------------------------------------------------------------------- */

static void gather_table(float *table, const float *from, int64_t width, const int64_t *order, int64_t count) {
    for (int64_t i = 0; i < POINTS; i++)
        for (int64_t j = 0; j < width; j++) table[j * POINTS + i] = i < count ? from[order[i] * width + j] : 0.0f;
}

/* Largest exponents, and how far the block reaches. An arc is at least as long as its chord. */
static void set_limits(const Kernel *k, const Block *b, int64_t count) {
    const float chord = k->sphere ? 4.0f * DEGREES2 : 1.0f;
    for (int64_t c = 0; c < k->columns; c++) {
        b->nearest[c] = INFINITY;
        for (int64_t i = 0; i < count; i++) b->nearest[c] = fminf(b->nearest[c], b->across[c * POINTS + i]);
    }
    for (int64_t i = 0; i < POINTS; i += W) {
        vec closest = all(INFINITY), least = all(INFINITY);
        for (int64_t c = 0; c < k->columns; c++) closest = smaller(load(b->across + c * POINTS + i), closest);
        for (int64_t r = 0; r < k->rows; r++) {
            const vec apart = load(b->apart + r * POINTS + i);
            vec d2 = closest;
            if (k->sphere) {
                const vec h = load(b->rows + r * POINTS + i) + load(b->cosines + r * POINTS + i) * closest;
                d2 = squared_arc(smaller(h, all(0.5f)));
            }
            least = smaller(apart + d2 * k->precision, least);
        }
        for (int l = 0; l < W; l++)
            b->limit[i + l] = i + l < count && isfinite(least[l]) ? least[l] + REACH : -1.0f;
    }
    for (int64_t r = 0; r < k->rows; r++) {
        b->furthest[r] = -INFINITY;
        for (int64_t i = 0; i < count; i++) {
            float left = (b->limit[i] - b->apart[r * POINTS + i]) / (k->precision * chord);
            if (!(left >= 0.0f)) continue;
            if (k->sphere) {
                left -= b->rows[r * POINTS + i];
                if (left < 0.0f) continue;
                left /= fmaxf(b->cosines[r * POINTS + i], 1e-30f);
            }
            b->furthest[r] = fmaxf(b->furthest[r], left);
        }
    }
}

/* Tables of all blocks of all batch elements, or NULL if there is not enough memory. */
static float *make_tables(
    Kernel *k, int64_t threads, int64_t batch, const int64_t *order, const float *apart, const float *rows,
    const float *cosines, const float *across
) {
    k->blocks = (k->n + POINTS - 1) / POINTS;
    k->floats = up_to((k->rows * (k->sphere ? 3 : 1) + k->columns + 1) * POINTS + k->columns + k->rows, 16);
    k->tables = zeroed(batch * k->blocks * k->floats);
    if (!k->tables) return NULL;
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t block = 0; block < batch * k->blocks; block++) {
        const int64_t first = block % k->blocks * POINTS, left = k->n - first, count = left < POINTS ? left : POINTS;
        const int64_t *points = order + block / k->blocks * k->n + first;
        const Block b = block_at(k, block);
        gather_table(b.apart, apart, k->rows, points, count);
        if (k->sphere) {
            gather_table(b.rows, rows, k->rows, points, count);
            gather_table(b.cosines, cosines, k->rows, points, count);
        }
        gather_table(b.across, across, k->columns, points, count);
        set_limits(k, &b, count);
    }
    return k->tables;
}

/* ---- weights ---------------------------------------------------------------------------------------- */

/* Weights [node][point] of some columns of a row, and d² if it is wanted. */
static __attribute__((noinline)) void weights_of(
    const Kernel *k, const Block *b, int64_t r, const int64_t *column, int64_t count, float *weight, float *d2
) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < POINTS; i += W) {
            const vec d = squared_distance(k, b, r, column[j], i);
            const vec exponent = load(b->apart + r * POINTS + i) + d * k->precision;
            const vec e = exp2_of(exponent * (-0.5f * LOG2E));
            store(weight + j * POINTS + i, (vec)((ivec)e & (exponent <= load(b->limit + i))));
            if (d2) store(d2 + j * POINTS + i, d);
        }
}

/* The next columns of a row that the block reaches, at most `room`, from column `*c` on. */
INLINE int64_t next_columns(const Kernel *k, const Block *b, int64_t r, int64_t *c, int64_t *column, int64_t room) {
    int64_t count = 0;
    for (; *c < k->columns && count < room; ++*c)
        if (b->nearest[*c] <= b->furthest[r]) column[count++] = *c;
    return count;
}

/* Rows of the points of a block, in its order: [point][number]. */
static void gather_points(float *into, const float *from, const int64_t *order, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++)
        memcpy(into + i * filled(width), from + order[i] * width, sizeof(float) * width);
}

/* y[r] (+)= Σ_k x[r, k] panel[k] for `high` rows, whole tiles, and `width` columns, filled up. */
static __attribute__((noinline)) void products(
    float *y, int64_t y_row, int adds, const float *x, int64_t x_row, int64_t x_step, const float *panel,
    int64_t panel_row, int64_t depth, int64_t high, int64_t width
) {
    const float zeros[LANES] = {0};
    for (int64_t i = 0; i < high; i += TALL)
        for (int64_t j = 0; j < width; j += LANES) {
            float *s = y + i * y_row + j;
            tile_of(
                s, y_row, NULL, adds ? s : zeros, adds ? y_row : 0, PLUS, x + i * x_row, x_row, x_step, panel + j, panel_row,
                depth, TALL, ACROSS);
        }
}

/* ---- sums ------------------------------------------------------------------------------------------- */

/* Sums over the grid at every point: `y`, if it is wanted. Given gradients `grad` of these, or values of the points
 * whose sums on the grid have the gradient `u`, also the gradients of `apart` and of the precision, point by point. */
int kernel_from_grid(
    int64_t threads, int64_t batch, int64_t n, int64_t rows, int64_t columns, int64_t width, const int64_t *order,
    const float *apart, const float *row_part, const float *cosines, const float *across, float precision,
    const float *u, float *y, const float *grad, float *apart_grad, float *precision_grad
) {
    Kernel k = {n, rows, columns, 0, 0, precision, row_part != NULL, NULL};
    const int64_t row = filled(width), each = (NODES + 3 * POINTS) * row + 3 * NODES * POINTS;
    float *memory = scratch(threads, each);
    const int failed = !make_tables(&k, threads, batch, order, apart, row_part, cosines, across) || !memory;
    if (!failed) {
        #pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t block = 0; block < batch * k.blocks; block++) {
            const int64_t first = block % k.blocks * POINTS, left = n - first, count = left < POINTS ? left : POINTS;
            const int64_t element = block / k.blocks, *points = order + element * n + first;
            const float *grid = u + element * rows * columns * width;
            const Block b = block_at(&k, block);
            float *nodes = own_part(memory, each), *sums = nodes + NODES * row, *g = sums + POINTS * row;
            float *g_columns = g + POINTS * row, *weight = g_columns + POINTS * row, *d2 = weight + NODES * POINTS;
            float *slope = d2 + NODES * POINTS;
            memset(sums, 0, sizeof(float) * POINTS * row);
            if (grad) {
                gather_points(g, grad, points, count, width);
                for (int64_t d = 0; d < width; d++)
                    for (int64_t i = 0; i < POINTS; i++) g_columns[d * POINTS + i] = i < count ? g[i * row + d] : 0.0f;
            }
            float scale_grad[POINTS] = {0};
            for (int64_t r = 0; r < rows; r++) {
                float row_grad[POINTS] = {0};
                int64_t column[NODES], found;
                for (int64_t c = 0; (found = next_columns(&k, &b, r, &c, column, NODES));) {
                    weights_of(&k, &b, r, column, found, weight, grad ? d2 : NULL);
                    for (int64_t j = 0; j < found; j++)
                        memcpy(nodes + j * row, grid + (r * columns + column[j]) * width, sizeof(float) * width);
                    if (y) products(sums, row, 1, weight, 1, POINTS, nodes, row, found, POINTS, width);
                    if (!grad) continue;
                    products(slope, POINTS, 0, nodes, row, 1, g_columns, POINTS, width, tall(found), POINTS);
                    for (int64_t j = 0; j < found; j++)
                        for (int64_t i = 0; i < POINTS; i++) {
                            const float e = -0.5f * weight[j * POINTS + i] * slope[j * POINTS + i];
                            row_grad[i] += e;
                            scale_grad[i] += e * d2[j * POINTS + i];
                        }
                }
                if (grad)
                    for (int64_t i = 0; i < count; i++) apart_grad[points[i] * rows + r] = row_grad[i];
            }
            for (int64_t i = 0; i < count; i++) {
                if (y) memcpy(y + points[i] * width, sums + i * row, sizeof(float) * width);
                if (grad) precision_grad[points[i]] = scale_grad[i];
            }
        }
    }
    free(memory);
    free(k.tables);
    return failed ? OUT_OF_MEMORY : 0;
}

/* Sums over the points at every grid point. Threads share the rows of the grid, and blocks are added in their order,
 * so that sums do not depend on the number of threads. */
int kernel_to_grid(
    int64_t threads, int64_t batch, int64_t n, int64_t rows, int64_t columns, int64_t width, const int64_t *order,
    const float *apart, const float *row_part, const float *cosines, const float *across, float precision,
    const float *z, float *u
) {
    Kernel k = {n, rows, columns, 0, 0, precision, row_part != NULL, NULL};
    const int64_t row = filled(width), each = NODES * row + NODES * POINTS;
    float *memory = scratch(threads, each);
    int failed = !make_tables(&k, threads, batch, order, apart, row_part, cosines, across) || !memory;
    float *values = zeroed(batch * k.blocks * POINTS * row);
    failed |= !values;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *sums = own_part(memory, each), *weight = sums + NODES * row;
            #pragma omp for schedule(dynamic)
            for (int64_t block = 0; block < batch * k.blocks; block++) {
                const int64_t first = block % k.blocks * POINTS, left = n - first;
                gather_points(
                    values + block * POINTS * row, z, order + block / k.blocks * n + first,
                    left < POINTS ? left : POINTS, width);
            }
            #pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < batch * rows; task++) {
                const int64_t element = task / rows, r = task % rows;
                float *to = u + task * columns * width;
                memset(to, 0, sizeof(float) * columns * width);
                for (int64_t block = element * k.blocks; block < (element + 1) * k.blocks; block++) {
                    const Block b = block_at(&k, block);
                    int64_t column[NODES], found;
                    for (int64_t c = 0; (found = next_columns(&k, &b, r, &c, column, NODES));) {
                        weights_of(&k, &b, r, column, found, weight, NULL);
                        products(
                            sums, row, 0, weight, POINTS, 1, values + block * POINTS * row, row, POINTS, tall(found),
                            width);
                        for (int64_t j = 0; j < found; j++)
                            for (int64_t d = 0; d < width; d++) to[column[j] * width + d] += sums[j * row + d];
                    }
                }
            }
        }
    }
    free(values);
    free(memory);
    free(k.tables);
    return failed ? OUT_OF_MEMORY : 0;
}
