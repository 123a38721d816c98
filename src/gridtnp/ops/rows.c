/* Row-wise steps (linear maps, norms, ReLUs, sums) in float32, as defined in rows.py.
 *
 * Each block of rows goes through all steps while it is in the cache. The backward pass recomputes intermediate
 * results, or gets those of linear maps, if there is memory to keep them: a norm takes no longer to compute than to
 * read. Threads share the blocks. Gradients of weights are summed over groups of blocks, whose number does not depend
 * on the number of threads.
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

/* y = x · w + bias, and then `end`; w has `depth` rows and `width` columns, in panels of LANES columns, followed by
 * the bias. Rows of y and of the others are filled(width) floats apart. */
INLINE void product_of(
    float *y, const float *x, const float *panels, const float *other, int64_t other_row, int64_t rows, int64_t depth,
    int64_t width, const int end
) {
    const int64_t row = filled(width);
    for (int64_t j = 0; j < width; j += LANES)
        for (int64_t i = 0; i < rows; i += TALL)
            tile_of(
                y + i * row + j, row, panels + depth * row + j, other ? other + i * other_row + j : NULL, other_row, end,
                x + i * filled(depth), filled(depth), 1, panels + j * depth, LANES, depth, TALL, ACROSS);
}

static void product(
    float *y, const float *x, const float *panels, const float *other, int64_t rows, int64_t depth, int64_t width,
    int end
) {
    const int64_t row = filled(width);
    if (end == AS_IT_IS) product_of(y, x, panels, NULL, row, rows, depth, width, AS_IT_IS);
    else if (end == POSITIVE) product_of(y, x, panels, NULL, row, rows, depth, width, POSITIVE);
    else if (end == PLUS) product_of(y, x, panels, other, row, rows, depth, width, PLUS);
    else product_of(y, x, panels, other, row, rows, depth, width, GATED);
}

/* sum += gᵀ · x, in panels of LANES columns; `panel` is a buffer for one panel of x, whose rows would otherwise fall on
 * the same few places of the cache. Summing by blocks keeps rounding errors from growing with the number of rows. */
static void add_outer(
    float *sum, const float *g, int64_t out, const float *x, int64_t in, int64_t rows, float *panel
) {
    for (int64_t j = 0; j < in; j += LANES) {
        for (int64_t i = 0; i < rows; i++)
            for (int c = 0; c < ACROSS; c++) store(panel + i * LANES + c * W, load(x + i * filled(in) + j + c * W));
        for (int64_t i = 0; i < out; i += TALL) {
            float *s = sum + j * tall(out) + i * LANES;
            tile_of(s, LANES, NULL, s, LANES, PLUS, g + i, 1, filled(out), panel, LANES, rows, TALL, ACROSS);
        }
    }
}

/* Pack a matrix into panels of LANES columns, leaving the padding as it is: w[k, j] is w[k * row + j * step]. */
static void pack(float *panels, const float *w, int64_t row, int64_t step, int64_t depth, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES, panels += depth * LANES) {
        const int64_t many = width - j < LANES ? width - j : LANES;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t c = 0; c < many; c++) panels[k * LANES + c] = w[k * row + (j + c) * step];
    }
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
    const float *weight = step->weight, *bias = step->bias;
    for (int64_t i = 0; i < rows; i++, x += row, y += row) {
        const float mean = mean_of(x, width), scale = inverse_std(x, mean, width, step->eps);
        int64_t d = 0;
        for (; d + W <= width; d += W) {
            const vec normed = (load(x + d) - mean) * scale * load(weight + d);
            store(y + d, bias ? normed + load(bias + d) : normed);
        }
        for (; d < width; d++) y[d] = (x[d] - mean) * scale * weight[d] + (bias ? bias[d] : 0.0f);
    }
}

/* Gradient of x, plus `kept` if there is such; those of weight and bias are added to the sums. */
static void norm_backward(
    float *y, const float *g, const float *x, const Step *step, const float *kept, int64_t rows, float *weight_sum,
    float *bias_sum
) {
    const int64_t width = step->in, row = filled(width);
    const float *weight = step->weight;
    for (int64_t i = 0; i < rows; i++, x += row, g += row, y += row) {
        const float mean = mean_of(x, width), scale = inverse_std(x, mean, width, step->eps);
        vec level = all(0.0f), slope = all(0.0f);
        float level_rest = 0.0f, slope_rest = 0.0f;
        int64_t d = 0;
        for (; d + W <= width; d += W) {
            const vec normed = (load(x + d) - mean) * scale, given = load(g + d);
            store(weight_sum + d, load(weight_sum + d) + given * normed);
            store(bias_sum + d, load(bias_sum + d) + given);
            const vec weighted = given * load(weight + d);
            level += weighted;
            slope += weighted * normed;
        }
        for (; d < width; d++) {
            const float normed = (x[d] - mean) * scale;
            weight_sum[d] += g[d] * normed;
            bias_sum[d] += g[d];
            level_rest += g[d] * weight[d];
            slope_rest += g[d] * weight[d] * normed;
        }
        const float a = (sum(level) + level_rest) / width, b = (sum(slope) + slope_rest) / width;
        for (d = 0; d + W <= width; d += W) {
            const vec v = (load(g + d) * load(weight + d) - a - (load(x + d) - mean) * scale * b) * scale;
            store(y + d, kept ? v + load(kept + i * row + d) : v);
        }
        for (; d < width; d++)
            y[d] = scale * (g[d] * weight[d] - a - b * (x[d] - mean) * scale) + (kept ? kept[i * row + d] : 0.0f);
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

/* Whether all rows and columns of a block are whole tiles, so that it can be read and written where it lies. */
static int is_whole(int64_t rows, int64_t width) { return rows % TALL == 0 && width % LANES == 0; }

/* The rows of a block whose elements are `step` floats apart: where they lie, if possible, or copied to y. */
static float *input(float *y, const float *x, int64_t row, int64_t step, int64_t rows, int64_t width) {
    if (step == 1 && row == width && is_whole(rows, width)) return (float *)x; /* which will not be written to */
    if (step == 1) copy(y, filled(width), x, row, rows, width);
    else
        for (int64_t d = 0; d < width; d++)
            for (int64_t i = 0; i < rows; i++) y[i * filled(width) + d] = x[i * row + d * step];
    return y;
}

/* ---- all steps of a block ------------------------------------------------------------------------- */

/* Whether step i ends a linear map: it is computed with it, or at least in place. */
static int ends_product(const Step *steps, int64_t i) {
    const int64_t kind = steps[i].kind;
    return i > 0 && steps[i - 1].kind == LINEAR && (kind == RELU || kind == ADD || kind == ADD_KEPT);
}

static int64_t widest(const Step *steps, int64_t count) {
    int64_t most = steps[0].in;
    for (int64_t i = 0; i < count; i++) most = larger_of(most, steps[i].out);
    return most;
}

/* The steps whose inputs the backward pass needs are those up to this one. */
static int64_t needed_of(const Step *steps, int64_t count) {
    int64_t last = count - 1;
    while (last > 0 && steps[last].kind != LINEAR && steps[last].kind != RELU && steps[last].kind != NORM) last--;
    return steps[last].kind == RELU ? last + 1 : last;
}

/* Memory for the results of the linear maps below step `end`, tall(n) rows each, or NULL; `there` if the forward pass
 * has written them already. */
typedef struct {
    float *memory;
    int64_t n, end;
    int there;
} Kept;

/* Forward pass of a block of at most `block` rows; at[i] is the input of step i. Outputs go into `buffer`, and the last
 * one into `last` unless that is NULL. */
static void forward_block(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, int64_t block, float **at,
    float *buffer, Kept keep, float *last
) {
    const float *kept = NULL;
    int64_t end = count - 1; /* the step that writes the last output */
    while (end > 0 && (steps[end].kind == KEEP || ends_product(steps, end))) end--;
    for (int64_t i = 0; i < count; i++) {
        const Step *s = steps + i;
        const float *x = at[i];
        const int64_t row = filled(s->out);
        if (s->kind == KEEP) {
            kept = at[i + 1] = at[i];
            continue;
        }
        float *y = buffer;
        if (ends_product(steps, i)) y = at[i];
        else if (keep.memory && s->kind == LINEAR && i < keep.end) {
            y = keep.memory + first * row;
            keep.memory += tall(keep.n) * row;
        } else if (last && i == end) y = last;
        else buffer += (block + 1) * row;
        at[i + 1] = y;
        if (s->kind == LINEAR) {
            int how = AS_IT_IS;
            const float *other = kept;
            if (i + 1 < count && steps[i + 1].kind == RELU) how = POSITIVE;
            else if (i + 1 < count && steps[i + 1].kind == ADD_KEPT) how = PLUS;
            else if (i + 1 < count && steps[i + 1].kind == ADD && is_whole(rows, s->out))
                how = PLUS, other = steps[i + 1].weight + first * s->out;
            if (!keep.there) product(y, x, panels[i], other, rows, s->in, s->out, how);
            if (how != AS_IT_IS || (keep.there && i + 1 < count && ends_product(steps, i + 1))) at[++i + 1] = y;
        } else if (s->kind == NORM) norm(y, x, s, rows);
        else if (s->kind == RELU) relu(y, x, rows * row);
        else if (s->kind == ADD) add(y, row, x, row, s->weight + first * s->out, s->out, rows, s->out);
        else add(y, row, x, row, kept, row, rows, s->out);
    }
}

/* An upper bound for the floats that `forward_block` needs. */
static int64_t buffer_size(const Step *steps, int64_t count, int64_t block) {
    int64_t floats = (block + 1) * filled(steps[0].in);
    for (int64_t i = 0; i < count; i++) floats += (block + 1) * filled(steps[i].out);
    return floats;
}

/* Pack all linear maps, each followed by the initial value of its products: the bias, or zeros for the backward
 * pass, which uses the transposed map. NULL if there is not enough memory. */
static float *pack_all(float **panels, const Step *steps, int64_t count, int backward) {
    int64_t floats = 1;
    for (int64_t i = 0; i < count; i++) floats += (filled(steps[i].in) + 1) * (filled(steps[i].out) + 1);
    float *buffer = zeroed(floats), *next = buffer;
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

/* What the backward pass needs of linear maps is written to `kept`, unless that is NULL. */
int rows_forward(
    int64_t threads, int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count, float *y,
    float *kept
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n);
    const int64_t each = buffer_size(steps, count, block);
    const Kept keep = {kept, n, needed_of(steps, count), 0};
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
                float *last = is_whole(rows, out) ? y + first * out : NULL;
                at[0] = input(buffer, x + first * row, row, step, rows, in);
                forward_block(
                    steps, count, panels, first, rows, block, at, buffer + (block + 1) * filled(in), keep, last);
                if (at[count] != last) copy(y + first * out, out, at[count], filled(out), rows, out);
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

/* Backward pass of a block: from the gradient `grad` of its output to that of its input, which is returned; it is
 * written to `last` unless that is NULL. `buffers` has room for three blocks. */
static const float *backward_block(
    const Step *steps, int64_t count, float *const *panels, int64_t first, int64_t rows, float *const *at,
    const int64_t *sums, float *sum, const float *grad, float *buffers, int64_t places, float *panel, int64_t lowest,
    int need_input_grad, float *last
) {
    float *spare = buffers, *other = buffers + places, *kept_copy = other + places;
    const float *g = grad, *kept = NULL; /* `kept` is a gradient for the matching KEEP */
    for (int64_t i = count - 1; i >= lowest; i--) {
        const Step *s = steps + i;
        const int64_t row = filled(s->out), before = i > lowest ? steps[i - 1].kind : -1;
        float *y = last && (i == lowest || (i == lowest + 1 && before != LINEAR && before != NORM)) ? last : spare;
        if (s->kind == LINEAR) {
            float *weight_sum = sum + sums[i], *bias_sum = weight_sum + tall(s->out) * filled(s->in);
            if (s->bias_grad) add_columns(bias_sum, g, s->out, rows);
            if (s->weight_grad) add_outer(weight_sum, g, s->out, at[i], s->in, rows, panel);
            if (i == lowest && !need_input_grad) break;
            product(y, g, panels[i], at[i], rows, s->out, s->in, before == RELU ? GATED : AS_IT_IS);
            if (before == RELU) i--;
        } else if (s->kind == NORM) {
            const float *more = before == KEEP ? kept : NULL;
            norm_backward(y, g, at[i], s, more, rows, sum + sums[i], sum + sums[i] + filled(s->in));
            if (more) kept = NULL;
        } else if (s->kind == RELU) {
            for (int64_t d = 0; d < rows * row; d++) y[d] = at[i + 1][d] > 0.0f ? g[d] : 0.0f;
        } else if (s->kind == KEEP && kept) {
            add(y, row, g, row, kept, row, rows, s->out);
            kept = NULL;
        } else {
            if (s->kind == ADD && s->weight_grad) copy(s->weight_grad + first * s->out, s->out, g, row, rows, s->out);
            if (s->kind == ADD_KEPT && kept) add(kept_copy, row, kept, row, g, row, rows, s->out);
            else if (s->kind == ADD_KEPT && g != grad) copy(kept_copy, row, g, row, rows, s->out);
            if (s->kind == ADD_KEPT) kept = kept || g != grad ? kept_copy : grad;
            continue;
        }
        g = y;
        if (y == spare) spare = other, other = y;
    }
    return g;
}

/* y = the sum of groups, which are `each` floats apart. */
static void total(float *y, const float *sum, int64_t each, int64_t groups, int64_t width) {
    for (int64_t d = 0; d < width; d += W) {
        vec t = load(sum + d);
        for (int64_t group = 1; group < groups; group++) t += load(sum + group * each + d);
        memcpy(y + d, &t, sizeof(float) * (width - d < W ? width - d : W));
    }
}

/* Write the gradients of a linear map or norm, summed over groups, where they are needed; threads share the rows. */
static void write_gradients(const Step *s, const float *sum, int64_t each, int64_t groups) {
    const int64_t in = s->in, rows = s->kind == LINEAR ? s->out : 1, high = s->kind == LINEAR ? tall(s->out) : 1;
    #pragma omp for schedule(static) nowait
    for (int64_t o = 0; o < rows; o++) {
        for (int64_t j = 0; s->weight_grad && j < in; j += LANES)
            total(s->weight_grad + o * in + j, sum + j * high + o * LANES, each, groups, in - j < LANES ? in - j : LANES);
        if (s->bias_grad && o == 0) total(s->bias_grad, sum + high * filled(in), each, groups, s->out);
    }
}

/* `kept` holds what the forward pass kept, or is NULL. */
int rows_backward(
    int64_t threads, int64_t n, const float *x, int64_t row, int64_t step, const Step *steps, int64_t count,
    float *kept, const float *grad, float *x_grad
) {
    const int64_t in = steps[0].in, out = steps[count - 1].out, block = block_of(n), blocks = (n + block - 1) / block;
    int64_t groups = 1; /* a power of two, which two or four threads can share */
    while (2 * groups * SHARE <= n && groups < GROUPS) groups *= 2;
    const int64_t places = (block + 1) * filled(widest(steps, count));
    int64_t lowest = 0;
    if (!x_grad)
        while (lowest < count - 1 && !steps[lowest].weight_grad && !steps[lowest].bias_grad) lowest++;
    const int64_t needed = needed_of(steps, count);
    const Kept keep = {kept, n, needed, kept != NULL};
    const int64_t each = buffer_size(steps, count, block) + 4 * places + BLOCK * LANES;
    float **panels = malloc(sizeof(float *) * (2 * count + threads * (count + 1)));
    float **back_panels = panels + count, **inputs = back_panels + count;
    float *packed = panels ? pack_all(panels, steps, kept ? 0 : needed, 0) : NULL;
    float *back_packed = panels ? pack_all(back_panels, steps, count, 1) : NULL;
    int64_t *sums = malloc(sizeof(int64_t) * (count + 1));
    if (sums) sums_of(sums, steps, count);
    float *sum = sums ? zeroed(groups * sums[count]) : NULL, *memory = scratch(threads, each);
    const int failed = !packed || !back_packed || !sum || !memory;
    if (!failed) {
        #pragma omp parallel num_threads(threads)
        {
            float *panel = own_part(memory, each), *buffers = panel + BLOCK * LANES, *g_copy = buffers + 3 * places;
            float *begin = g_copy + places, **at = inputs + omp_get_thread_num() * (count + 1);
            #pragma omp for schedule(dynamic)
            for (int64_t group = 0; group < groups; group++)
                for (int64_t b = blocks * group / groups; b < blocks * (group + 1) / groups; b++) {
                    const int64_t first = b * block, rows = n - first < block ? n - first : block;
                    at[0] = input(begin, x + first * row, row, step, rows, in);
                    forward_block(
                        steps, needed, panels, first, rows, block, at, begin + (block + 1) * filled(in), keep,
                        NULL);
                    const float *g = g_copy; /* products with it read whole tiles, beyond its last row */
                    if (first + rows == n && out % TALL) copy(g_copy, filled(out), grad + first * out, out, rows, out);
                    else g = input(g_copy, grad + first * out, out, 1, rows, out);
                    float *direct = x_grad && is_whole(rows, in) ? x_grad + first * in : NULL;
                    const float *end = backward_block(
                        steps, count, back_panels, first, rows, at, sums, sum + group * sums[count], g, buffers, places,
                        panel, lowest, x_grad != NULL, direct);
                    if (x_grad && end != direct) copy(x_grad + first * in, in, end, filled(in), rows, in);
                }
            for (int64_t i = 0; i < count; i++)
                if (steps[i].kind == LINEAR || steps[i].kind == NORM)
                    write_gradients(steps + i, sum + sums[i], sums[count], groups);
        }
    }
    free(memory);
    free(sum);
    free(sums);
    free(back_packed);
    free(packed);
    free(panels);
    return failed ? OUT_OF_MEMORY : 0;
}
