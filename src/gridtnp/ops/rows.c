/* Row-wise steps (linear maps, norms, ReLUs, sums) in float32, as defined in rows.py.
 *
 * Each block of rows goes through all steps while it is in the cache. Intermediate results are not stored; the
 * backward pass recomputes them. Threads share the blocks. Gradients of weights are summed over groups of rows, whose
 * number does not depend on the number of threads.
 */

#include "vectors.h"

/* Bits of the vectors that were compiled. */
int vector_bits(void) { return VECTOR_BITS; }

enum { LINEAR, NORM, RELU, ADD, KEEP, ADD_KEPT };

/* `weight` and `bias` of a linear map, `out` × `in`, or of a norm; for ADD, `weight` holds the rows to add.
 * Gradients that are not needed are NULL. */
typedef struct {
    int64_t kind, in, out;
    const float *weight, *bias;
    float *weight_grad, *bias_grad;
    double eps;
} Step;

#define BLOCK 96   /* rows per block: a multiple of TALL, small enough for the cache */
#define SHARE 512  /* fewest rows per group */
#define GROUPS 32  /* at most */
#define SEVERAL 8  /* blocks, if there are few rows */

static int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- products --------------------------------------------------------------------------------------- */

/* y = x · w + bias; w has `depth` rows and `width` columns, in panels of LANES columns. */
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

/* sum += gᵀ · x, in panels of LANES columns; `panel` is a buffer for one panel of x. Summing by blocks keeps
 * rounding errors from growing with the number of rows. */
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

/* Pack a matrix into panels of LANES columns, leaving the padding as it is: w[k, j] is w[k * row + j * step]. */
static void pack(float *panels, const float *w, int64_t row, int64_t step, int64_t depth, int64_t width) {
    for (int64_t j = 0; j < width; j++)
        for (int64_t k = 0; k < depth; k++)
            panels[(j / LANES * depth + k) * LANES + j % LANES] = w[k * row + j * step];
}

/* ---- the other steps ------------------------------------------------------------------------------ */

INLINE float mean_of(const float *x, int64_t width) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int64_t d = 0;
    for (; d + W <= width; d += W) s += load(x + d);
    for (; d < width; d++) rest += x[d];
    return (sum(s) + rest) / width;
}

/* 1/σ; NaN if the variance is infinite or NaN. */
INLINE float inverse_std(const float *x, float mean, int64_t width, double eps) {
    vec s = all(0.0f);
    float rest = 0.0f;
    int64_t d = 0;
    for (; d + W <= width; d += W) {
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
        const float mean = mean_of(x, width), scale = inverse_std(x, mean, width, step->eps);
        if (step->bias)
            for (int64_t d = 0; d < width; d++) y[d] = (x[d] - mean) * scale * step->weight[d] + step->bias[d];
        else
            for (int64_t d = 0; d < width; d++) y[d] = (x[d] - mean) * scale * step->weight[d];
    }
}

/* Gradient in place of g; those of weight and bias are added to the sums. */
static void norm_backward(
    float *g, const float *x, const Step *step, int64_t rows, float *weight_sum, float *bias_sum
) {
    const int64_t width = step->in, row = filled(width);
    for (int64_t i = 0; i < rows; i++, x += row, g += row) {
        const float mean = mean_of(x, width), scale = inverse_std(x, mean, width, step->eps);
        vec level = all(0.0f), slope = all(0.0f);
        float level_rest = 0.0f, slope_rest = 0.0f;
        int64_t d = 0;
        for (; d + W <= width; d += W) {
            const vec normed = (load(x + d) - mean) * scale, given = load(g + d);
            store(weight_sum + d, load(weight_sum + d) + given * normed);
            store(bias_sum + d, load(bias_sum + d) + given);
            const vec weighted = given * load(step->weight + d);
            level += weighted;
            slope += weighted * normed;
        }
        for (; d < width; d++) {
            const float normed = (x[d] - mean) * scale;
            weight_sum[d] += g[d] * normed;
            bias_sum[d] += g[d];
            level_rest += g[d] * step->weight[d];
            slope_rest += g[d] * step->weight[d] * normed;
        }
        const float a = (sum(level) + level_rest) / width, b = (sum(slope) + slope_rest) / width;
        for (d = 0; d < width; d++)
            g[d] = scale * (g[d] * step->weight[d] - a - b * (x[d] - mean) * scale);
    }
}

/* sum += column sums of g. */
static void add_columns(float *sum, const float *g, int64_t width, int64_t rows) {
    for (int64_t d = 0; d < width; d += W) {
        vec part = all(0.0f);
        for (int64_t i = 0; i < rows; i++) part += load(g + i * filled(width) + d);
        store(sum + d, load(sum + d) + part);
    }
}

static void relu(float *y, const float *x, int64_t numbers) {
    for (int64_t i = 0; i < numbers; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* keeps NaN */
}

static void add(float *y, int64_t y_row, const float *x, int64_t x_row, const float *z, int64_t z_row, int64_t rows,
                int64_t width) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < width; d++) y[i * y_row + d] = x[i * x_row + d] + z[i * z_row + d];
}

static void copy(float *y, int64_t y_row, const float *x, int64_t x_row, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) memcpy(y + i * y_row, x + i * x_row, sizeof(float) * width);
}

/* Copy rows whose elements are `step` floats apart. */
static void fetch(float *y, const float *x, int64_t row, int64_t step, int64_t rows, int64_t width) {
    if (step == 1) copy(y, filled(width), x, row, rows, width);
    else
        for (int64_t d = 0; d < width; d++)
            for (int64_t i = 0; i < rows; i++) y[i * filled(width) + d] = x[i * row + d * step];
}

/* ---- all steps of a block ------------------------------------------------------------------------- */

/* Whether step i needs an output buffer, because it cannot run in place or its input is still needed. */
static int needs_buffer(const Step *steps, int64_t i) {
    const int64_t kind = steps[i].kind, before = i ? steps[i - 1].kind : LINEAR;
    return kind == LINEAR || kind == NORM || (kind != KEEP && (before == RELU || before == KEEP));
}

static int64_t widest(const Step *steps, int64_t count) {
    int64_t most = steps[0].in;
    for (int64_t i = 0; i < count; i++) most = larger_of(most, steps[i].out);
    return most;
}

/* Forward pass of a block; at[i] is the input of step i. Outputs go into `buffer`. */
static void forward_block(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, float **at, float *buffer
) {
    const float *kept = NULL;
    for (int64_t i = 0; i < count; i++) {
        const Step *s = steps + i;
        const float *x = at[i];
        float *y = at[i];
        const int64_t row = filled(s->out);
        if (needs_buffer(steps, i)) y = buffer, buffer += (BLOCK + 1) * row;
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

/* An upper bound for the floats that `forward_block` needs. */
static int64_t buffer_size(const Step *steps, int64_t count) {
    int64_t floats = (BLOCK + 1) * filled(steps[0].in);
    for (int64_t i = 0; i < count; i++) floats += (BLOCK + 1) * filled(steps[i].out);
    return floats;
}

/* Pack all linear maps, each followed by the initial value of its products: the bias, or zeros for the backward
 * pass, which uses the transposed map. NULL if there is not enough memory. */
static float *pack_all(float **panels, const Step *steps, int64_t count, int backward) {
    int64_t floats = 1;
    for (int64_t i = 0; i < count; i++) floats += (filled(steps[i].in) + 1) * (filled(steps[i].out) + 1);
    float *buffer = calloc(floats, sizeof(float)), *next = buffer;
    if (!buffer) return NULL;
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
    return buffer;
}

/* Rows per block, such that there are several. */
static int64_t block_of(int64_t n) {
    const int64_t share = tall((n + SEVERAL - 1) / SEVERAL);
    return share < BLOCK ? larger_of(share, TALL) : BLOCK;
}

int rows_forward(
    int64_t threads, int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count, float *y
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n);
    const int64_t each = buffer_size(steps, count);
    float **panels = malloc(sizeof(float *) * (count + threads * (count + 1))), **inputs = panels + count;
    float *packed = panels ? pack_all(panels, steps, count, 0) : NULL, *memory = scratch(threads, each);
    const int failed = !packed || !memory;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *buffer = own_part(memory, each), **at = inputs + omp_get_thread_num() * (count + 1);
            #pragma omp for schedule(dynamic)
            for (int64_t first = 0; first < n; first += block) {
                const int64_t rows = n - first < block ? n - first : block;
                at[0] = buffer;
                fetch(at[0], x + first * row, row, step, rows, in);
                forward_block(steps, count, panels, first, rows, at, buffer + (BLOCK + 1) * filled(in));
                copy(y + first * out, out, at[count], filled(out), rows, out);
            }
        }
    }
    free(memory);
    free(packed);
    free(panels);
    return failed ? OUT_OF_MEMORY : 0;
}

/* Offsets of the gradient sums of each step, in floats; sums[count] is their total. */
static void sums_of(int64_t *sums, const Step *steps, int64_t count) {
    sums[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t in = steps[i].in, out = steps[i].out;
        sums[i + 1] = sums[i];
        if (steps[i].kind == LINEAR) sums[i + 1] += tall(out) * filled(in) + filled(out);
        if (steps[i].kind == NORM) sums[i + 1] += 2 * filled(in);
    }
}

/* Backward pass of a block: from the gradient g of its output to that of its input, which is returned. `spare` and
 * `kept` are buffers of the same size. */
static float *backward_block(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, float *const *at,
    const int64_t *sums, float *sum, float *g, float *spare, float *kept, float *panel, int64_t lowest,
    int need_input_grad
) {
    int pending = 0; /* `kept` holds a gradient for the matching KEEP */
    for (int64_t i = count - 1; i >= lowest; i--) {
        const Step *s = steps + i;
        const int64_t row = filled(s->out);
        if (s->kind == LINEAR) {
            float *weight_sum = sum + sums[i], *bias_sum = weight_sum + tall(s->out) * filled(s->in);
            if (s->bias_grad) add_columns(bias_sum, g, s->out, rows);
            if (s->weight_grad) add_outer(weight_sum, g, s->out, at[i], s->in, rows, panel);
            if (i == lowest && !need_input_grad) break;
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
            if (pending) add(g, row, g, row, kept, row, rows, s->out);
            pending = 0;
        } else {
            if (pending) add(kept, row, kept, row, g, row, rows, s->out);
            else copy(kept, row, g, row, rows, s->out);
            pending = 1;
        }
    }
    return g;
}

/* Sum over groups, whose sums are `each` floats apart. */
INLINE float total(const float *sum, int64_t each, int64_t groups) {
    float t = 0.0f;
    for (int64_t group = 0; group < groups; group++) t += sum[group * each];
    return t;
}

/* Write the gradients of a linear map or norm, summed over groups, where they are needed. */
static void write_gradients(const Step *s, const float *sum, int64_t each, int64_t groups) {
    const int64_t in = s->in, rows = s->kind == LINEAR ? s->out : 1, high = s->kind == LINEAR ? tall(s->out) : 1;
    if (s->weight_grad)
        for (int64_t o = 0; o < rows; o++)
            for (int64_t j = 0; j < in; j++) {
                const float *at = sum + (j / LANES * high + o) * LANES + j % LANES;
                s->weight_grad[o * in + j] = total(at, each, groups);
            }
    if (s->bias_grad)
        for (int64_t d = 0; d < s->out; d++) s->bias_grad[d] = total(sum + high * filled(in) + d, each, groups);
}

int rows_backward(
    int64_t threads, int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count,
    const float *grad, float *x_grad
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n);
    const int64_t groups = n < SHARE ? 1 : n / SHARE < GROUPS ? n / SHARE : GROUPS;
    const int64_t share = up_to((n + groups - 1) / groups, block);
    const int64_t places = (BLOCK + 1) * filled(widest(steps, count));
    int64_t lowest = 0, last = count - 1;
    if (!x_grad)
        while (lowest < count - 1 && !steps[lowest].weight_grad && !steps[lowest].bias_grad) lowest++;
    while (last > 0 && steps[last].kind != LINEAR && steps[last].kind != RELU && steps[last].kind != NORM) last--;
    const int64_t needed = steps[last].kind == RELU ? last + 1 : last; /* steps to recompute */
    const int64_t each = buffer_size(steps, count) + 3 * places + BLOCK * LANES;
    float **panels = malloc(sizeof(float *) * (2 * count + threads * (count + 1)));
    float **back_panels = panels + count, **inputs = back_panels + count;
    float *packed = panels ? pack_all(panels, steps, needed, 0) : NULL;
    float *back_packed = panels ? pack_all(back_panels, steps, count, 1) : NULL;
    int64_t *sums = malloc(sizeof(int64_t) * (count + 1));
    if (sums) sums_of(sums, steps, count);
    float *sum = sums ? calloc(groups, (sums[count] + 1) * sizeof(float)) : NULL, *memory = scratch(threads, each);
    const int failed = !packed || !back_packed || !sum || !memory;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *g = own_part(memory, each), *spare = g + places, *kept = spare + places, *panel = kept + places;
            float *begin = panel + BLOCK * LANES, **at = inputs + omp_get_thread_num() * (count + 1);
            #pragma omp for schedule(dynamic)
            for (int64_t group = 0; group < groups; group++)
                for (int64_t first = group * share; first < n && first < (group + 1) * share; first += block) {
                    const int64_t rows = n - first < block ? n - first : block;
                    at[0] = begin;
                    fetch(at[0], x + first * row, row, step, rows, in);
                    forward_block(steps, needed, panels, first, rows, at, begin + (BLOCK + 1) * filled(in));
                    copy(g, filled(out), grad + first * out, out, rows, out);
                    float *end = backward_block(
                        steps, count, back_panels, first, rows, at, sums, sum + group * sums[count], g,
                        spare, kept, panel, lowest, x_grad != NULL);
                    if (x_grad) copy(x_grad + first * in, in, end, filled(in), rows, in);
                }
        }
        #pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < count; i++)
            if (steps[i].kind == LINEAR || steps[i].kind == NORM)
                write_gradients(steps + i, sum + sums[i], sums[count], groups);
    }
    free(memory);
    free(sum);
    free(sums);
    free(back_packed);
    free(packed);
    free(panels);
    return failed ? OUT_OF_MEMORY : 0;
}
