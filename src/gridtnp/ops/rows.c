/* Linear maps and what surrounds them (norms, ReLUs, sums), row by row and single precision: what rows.py defines.
 *
 * Some rows at a time go through all steps while they are in the cache, and nothing in between is written to
 * memory; the backward pass computes it again. Threads share the rows out.
 */

#include "vectors.h"

enum { LINEAR, NORM, RELU, ADD, KEEP, ADD_KEPT };

/* `weight` and `bias` are those of a linear map, `out` × `in`, or of a norm; ADD has the rows to add as `weight`.
 * Gradients that nobody wants are NULL. */
typedef struct {
    int64_t kind, in, out;
    const float *weight, *bias;
    float *weight_grad, *bias_grad;
    double eps;
} Step;

#define BLOCK 96 /* so many rows at most at a time: whole tiles, and all that is made of them stays in the cache */

static int64_t largest_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- products --------------------------------------------------------------------------------------- */

/* y = x · w + bias, where w has `depth` rows and `width` columns and comes in panels of LANES columns. */
static void product(
    float *y, const float *x, int64_t x_row, const float *panels, const float *bias, int64_t rows, int64_t depth,
    int64_t width
) {
    for (int64_t j = 0; j < width; j += LANES)
        for (int64_t i = 0; i < rows; i += TALL)
            tile(
                y + i * filled(width) + j, filled(width), bias + j, 0, x + i * x_row, x_row, 1, panels + j * depth,
                depth);
}

/* sum += gᵀ · x, in panels of LANES columns; `panel` has room for one of x. Few numbers are added at a time, then
 * their sums: so rounding errors do not grow with the number of rows. */
static void add_outer(
    float *sum, const float *g, int64_t out, const float *x, int64_t in, int64_t rows, float *panel
) {
    const float zeros[LANES] = {0};
    float part[TALL * LANES];
    for (int64_t j = 0; j < in; j += LANES) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(panel + i * LANES, x + i * filled(in) + j, sizeof(float) * LANES);
        for (int64_t i = 0; i < out; i += TALL) {
            float *s = sum + j * tall(out) + i * LANES;
            tile(part, LANES, zeros, 0, g + i, 1, filled(out), panel, rows);
            for (int64_t d = 0; d < TALL * LANES; d++) s[d] += part[d];
        }
    }
}

/* Columns in panels of LANES, what fills up left as it is: w[k, j] is at w[k * row + j * step]. */
static void pack(float *panels, const float *w, int64_t row, int64_t step, int64_t depth, int64_t width) {
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k < depth; k++)
            panels[(j / LANES * depth + k) * LANES + j % LANES] = w[k * row + j * step];
}

/* ---- all else ------------------------------------------------------------------------------------- */

INLINE float mean_of(const float *x, int64_t width) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int64_t d = 0;
    for (; d + W8 <= width; d += W8) s += load(x + d);
    for (; d < width; d++) rest += x[d];
    return (sum(s) + rest) / width;
}

/* One over the standard deviation, which is no number where the variance is none. */
INLINE float precision_of(const float *x, float mean, int64_t width, double eps) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int64_t d = 0;
    for (; d + W8 <= width; d += W8) {
        const vec off = load(x + d) - mean;
        s += off * off;
    }
    for (; d < width; d++) rest += (x[d] - mean) * (x[d] - mean);
    const float variance = (sum(s) + rest) / width;
    return 1.0f / sqrtf(variance + (float)eps) + (variance - variance);
}

static void norm(float *y, const float *x, const Step *step, int64_t rows) {
    const int64_t width = step->in, row = filled(width);
    for (int64_t i = 0; i < rows; i++, x += row, y += row) {
        const float mean = mean_of(x, width), precision = precision_of(x, mean, width, step->eps);
        for (int64_t d = 0; d < width; d++)
            y[d] = (x[d] - mean) * precision * step->weight[d] + step->bias[d];
    }
}

/* In the place of g; gradients of weight and bias are added to the sums. */
static void norm_backward(
    float *g, const float *x, const Step *step, int64_t rows, float *weight_sum, float *bias_sum
) {
    const int64_t width = step->in, row = filled(width);
    for (int64_t i = 0; i < rows; i++, x += row, g += row) {
        const float mean = mean_of(x, width), precision = precision_of(x, mean, width, step->eps);
        vec level = all(0.0f), slope = all(0.0f);
        float level_rest = 0.0f, slope_rest = 0.0f;
        int64_t d = 0;
        for (; d + W8 <= width; d += W8) {
            const vec normed = (load(x + d) - mean) * precision, given = load(g + d);
            store(weight_sum + d, load(weight_sum + d) + given * normed);
            store(bias_sum + d, load(bias_sum + d) + given);
            const vec weighted = given * load(step->weight + d);
            level += weighted;
            slope += weighted * normed;
        }
        for (; d < width; d++) {
            const float normed = (x[d] - mean) * precision;
            weight_sum[d] += g[d] * normed;
            bias_sum[d] += g[d];
            level_rest += g[d] * step->weight[d];
            slope_rest += g[d] * step->weight[d] * normed;
        }
        const float a = (sum(level) + level_rest) / width, b = (sum(slope) + slope_rest) / width;
        for (d = 0; d < width; d++)
            g[d] = precision * (g[d] * step->weight[d] - a - b * (x[d] - mean) * precision);
    }
}

/* sum += the columns' sums of g. */
static void add_columns(float *sum, const float *g, int64_t width, int64_t rows) {
    for (int64_t d = 0; d < width; d += W8) {
        vec part = all(0.0f);
        for (int64_t i = 0; i < rows; i++) part += load(g + i * filled(width) + d);
        store(sum + d, load(sum + d) + part);
    }
}

static void relu(float *y, const float *x, int64_t numbers) {
    for (int64_t i = 0; i < numbers; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* what is no number stays so */
}

static void add(float *y, int64_t y_row, const float *x, int64_t x_row, const float *z, int64_t z_row, int64_t rows,
                int64_t width) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < width; d++) y[i * y_row + d] = x[i * x_row + d] + z[i * z_row + d];
}

static void copy(float *y, int64_t y_row, const float *x, int64_t x_row, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) memcpy(y + i * y_row, x + i * x_row, sizeof(float) * width);
}

/* Rows that may lie in columns, `step` floats apart. */
static void fetch(float *y, const float *x, int64_t row, int64_t step, int64_t rows, int64_t width) {
    if (step == 1) copy(y, filled(width), x, row, rows, width);
    else
        for (int64_t d = 0; d < width; d++)
            for (int64_t i = 0; i < rows; i++) y[i * filled(width) + d] = x[i * row + d * step];
}

/* ---- steps one after the other -------------------------------------------------------------------- */

/* What step i makes needs a place of its own if it cannot or must not take that of what it is made of. */
static int apart(const Step *steps, int64_t i) {
    const int64_t kind = steps[i].kind, before = i ? steps[i - 1].kind : LINEAR;
    return kind == LINEAR || kind == NORM || (kind != KEEP && (before == RELU || before == KEEP));
}

static int64_t widest(const Step *steps, int64_t count) {
    int64_t most = steps[0].in;
    for (int64_t i = 0; i < count; i++) most = largest_of(most, steps[i].out);
    return most;
}

/* at[i] is what step i reads; what is made goes into `room`. */
static void through(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, float **at, float *room
) {
    const float *kept = NULL;
    for (int64_t i = 0; i < count; i++) {
        const Step *s = steps + i;
        const float *x = at[i];
        float *y = at[i];
        const int64_t row = filled(s->out);
        if (apart(steps, i)) y = room, room += (BLOCK + 1) * row;
        if (s->kind == LINEAR)
            product(y, x, filled(s->in), panels[i], panels[i] + s->in * row, rows, s->in, s->out);
        else if (s->kind == NORM) norm(y, x, s, rows);
        else if (s->kind == RELU) relu(y, x, rows * row);
        else if (s->kind == ADD) add(y, row, x, row, s->weight + first * s->out, s->out, rows, s->out);
        else if (s->kind == KEEP) kept = x;
        else add(y, row, x, row, kept, row, rows, s->out);
        at[i + 1] = y;
    }
}

/* Floats that `through` needs at most. */
static int64_t room_for(const Step *steps, int64_t count) {
    int64_t floats = (BLOCK + 1) * filled(steps[0].in);
    for (int64_t i = 0; i < count; i++) floats += (BLOCK + 1) * filled(steps[i].out);
    return floats;
}

/* Panels of all linear maps, each followed by what the product begins with: of the maps themselves with their bias,
 * or of the way back with nothing. */
static float *pack_all(float **panels, const Step *steps, int64_t count, int backward) {
    int64_t floats = 1;
    for (int64_t i = 0; i < count; i++) floats += (filled(steps[i].in) + 1) * (filled(steps[i].out) + 1);
    float *room = calloc(floats, sizeof(float)), *next = room;
    for (int64_t i = 0; i < count; i++) {
        const Step *s = steps + i;
        if (s->kind != LINEAR) continue;
        panels[i] = next;
        if (backward) {
            pack(next, s->weight, s->in, 1, s->out, s->in);
            next += (s->out + 1) * filled(s->in);
        } else {
            pack(next, s->weight, 1, s->in, s->in, s->out);
            next += s->in * filled(s->out);
            if (s->bias) memcpy(next, s->bias, sizeof(float) * s->out);
            next += filled(s->out);
        }
    }
    return room;
}

/* Few enough rows at a time that every thread has some. */
static int64_t block_of(int64_t n) {
    const int64_t share = tall((n + omp_get_max_threads() - 1) / omp_get_max_threads());
    return share < BLOCK ? largest_of(share, TALL) : BLOCK;
}

void rows_forward(
    int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count, float *y
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n);
    float **panels = malloc(sizeof(float *) * count), *packed = pack_all(panels, steps, count, 0);
    #pragma omp parallel
    {
        float *room = calloc(room_for(steps, count), sizeof(float));
        float **at = malloc(sizeof(float *) * (count + 1));
        #pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < n; first += block) {
            const int64_t rows = n - first < block ? n - first : block;
            at[0] = room;
            fetch(at[0], x + first * row, row, step, rows, in);
            through(steps, count, panels, first, rows, at, room + (BLOCK + 1) * filled(in));
            copy(y + first * out, out, at[count], filled(out), rows, out);
        }
        free(at);
        free(room);
    }
    free(packed);
    free(panels);
}

/* Where every step's sums of gradients begin, in floats; sums[count] is how many there are. */
static void sums_of(int64_t *sums, const Step *steps, int64_t count) {
    sums[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t in = steps[i].in, out = steps[i].out;
        sums[i + 1] = sums[i];
        if (steps[i].kind == LINEAR) sums[i + 1] += tall(out) * filled(in) + filled(out);
        if (steps[i].kind == NORM) sums[i + 1] += 2 * filled(in);
    }
}

/* From the gradient g at the end of a block of rows to that at its beginning; `spare` has room for another such
 * block and `kept` for a third. */
static float *back(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, float *const *at,
    const int64_t *sums, float *sum, float *g, float *spare, float *kept, float *panel, int64_t lowest, int whole
) {
    int waiting = 0; /* for the step that kept what was added later */
    for (int64_t i = count - 1; i >= lowest; i--) {
        const Step *s = steps + i;
        const int64_t row = filled(s->out);
        if (s->kind == LINEAR) {
            float *weight_sum = sum + sums[i], *bias_sum = weight_sum + tall(s->out) * filled(s->in);
            if (s->bias_grad) add_columns(bias_sum, g, s->out, rows);
            if (s->weight_grad) add_outer(weight_sum, g, s->out, at[i], s->in, rows, panel);
            if (i == lowest && !whole) break;
            product(spare, g, row, panels[i], panels[i] + s->out * filled(s->in), rows, s->out, s->in);
            float *before = g;
            g = spare, spare = before;
        } else if (s->kind == NORM)
            norm_backward(g, at[i], s, rows, sum + sums[i], sum + sums[i] + filled(s->in));
        else if (s->kind == RELU) {
            for (int64_t d = 0; d < rows * row; d++) g[d] = at[i + 1][d] > 0.0f ? g[d] : 0.0f;
        } else if (s->kind == ADD) {
            if (s->weight_grad) copy(s->weight_grad + first * s->out, s->out, g, row, rows, s->out);
        } else if (s->kind == KEEP) {
            if (waiting) add(g, row, g, row, kept, row, rows, s->out);
            waiting = 0;
        } else {
            if (waiting) add(kept, row, kept, row, g, row, rows, s->out);
            else copy(kept, row, g, row, rows, s->out);
            waiting = 1;
        }
    }
    return g;
}

/* What all threads have at the same place; their sums are `each` floats apart. */
INLINE float total(const float *sum, int64_t each, int64_t threads) {
    float t = 0.0f;
    for (int64_t thread = 0; thread < threads; thread++) t += sum[thread * each];
    return t;
}

/* The gradients of a linear map or a norm that are wanted, out of the sums of all threads. */
static void bring_together(const Step *s, const float *sum, int64_t each, int64_t threads) {
    const int64_t in = s->in, rows = s->kind == LINEAR ? s->out : 1, high = s->kind == LINEAR ? tall(s->out) : 1;
    if (s->weight_grad)
        for (int64_t o = 0; o < rows; o++)
            for (int64_t j = 0; j < in; j++) {
                const float *at = sum + (j / LANES * high + o) * LANES + j % LANES;
                s->weight_grad[o * in + j] = total(at, each, threads);
            }
    if (s->bias_grad)
        for (int64_t d = 0; d < s->out; d++) s->bias_grad[d] = total(sum + high * filled(in) + d, each, threads);
}

void rows_backward(
    int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count, const float *grad,
    float *x_grad
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n), threads = omp_get_max_threads();
    const int64_t most = filled(widest(steps, count));
    int64_t lowest = 0, last = count - 1;
    if (!x_grad)
        while (lowest < count - 1 && !steps[lowest].weight_grad && !steps[lowest].bias_grad) lowest++;
    while (last > 0 && steps[last].kind != LINEAR && steps[last].kind != RELU && steps[last].kind != NORM) last--;
    const int64_t needed = steps[last].kind == RELU ? last + 1 : last; /* steps to compute again */
    float **panels = malloc(sizeof(float *) * 2 * count), **back_panels = panels + count;
    float *packed = pack_all(panels, steps, needed, 0), *back_packed = pack_all(back_panels, steps, count, 1);
    int64_t *sums = malloc(sizeof(int64_t) * (count + 1));
    sums_of(sums, steps, count);
    float *sum = calloc(threads * sums[count] + 1, sizeof(float));
    #pragma omp parallel
    {
        const int64_t places = (BLOCK + 1) * most;
        float *room = calloc(room_for(steps, count) + 3 * places + BLOCK * LANES, sizeof(float));
        float *g = room, *spare = g + places, *kept = spare + places, *panel = kept + places;
        float *begin = panel + BLOCK * LANES;
        float **at = malloc(sizeof(float *) * (count + 1));
        #pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += block) {
            const int64_t rows = n - first < block ? n - first : block;
            at[0] = begin;
            fetch(at[0], x + first * row, row, step, rows, in);
            through(steps, needed, panels, first, rows, at, begin + (BLOCK + 1) * filled(in));
            copy(g, filled(out), grad + first * out, out, rows, out);
            float *end = back(
                steps, count, back_panels, first, rows, at, sums, sum + omp_get_thread_num() * sums[count], g, spare,
                kept, panel, lowest, x_grad != NULL);
            if (x_grad) copy(x_grad + first * in, in, end, filled(in), rows, in);
        }
        free(at);
        free(room);
    }
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        if (steps[i].kind == LINEAR || steps[i].kind == NORM)
            bring_together(steps + i, sum + sums[i], sums[count], threads);
    free(sum);
    free(sums);
    free(back_packed);
    free(packed);
    free(panels);
}
