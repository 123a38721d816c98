/* Nodes of a grid around locations: indices, which exist, weights and features of offsets, as defined in stencils.py. */

#include "vectors.h"

/* One axis: the grid points low + step * i for i < size, of which `nodes` are around a location. */
typedef struct {
    double low, step;
    int64_t size, periodic, width, nodes;
} Axis;

INLINE double smooth_step(double x) {
    x = x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
    return x * x * (3.0 - 2.0 * x);
}

/* The index of a grid point; what is no number has none, and no weight either. */
INLINE int64_t to_index(const Axis *a, double i) {
    if (a->periodic) i -= floor(i / a->size) * a->size;
    return i > 0.0 ? (i < a->size ? (int64_t)i : a->size - 1) : 0;
}

/* Multiply `count` nodes by the grid points nearest to x along one more axis; see `Axis.around`. */
INLINE int64_t nearest(int64_t *flat, uint8_t *valid, int64_t count, const Axis *a, double x) {
    const double position = (x - a->low) / a->step, lower = floor(position);
    const double middle = a->width % 2 ? lower + (position - lower >= 0.5) : lower;
    const int64_t below = !a->periodic && a->width % 2 == 0 && middle < 0.0; /* the first grid point is above */
    const int64_t centre = below ? -1 : to_index(a, middle);
    for (int64_t i = count - 1; i >= 0; i--) {
        const int64_t row = flat[i] * a->size, is = valid[i];
        for (int64_t j = a->width - 1; j >= 0; j--) {
            const int64_t shift = j - (a->width - 1) / 2;
            int64_t at = centre + shift, exists = at >= 0 && at < a->size;
            if (a->periodic) { /* if the axis is shorter than the width, each grid point counts once */
                exists = shift >= -((a->size - 1) / 2) && shift <= a->size / 2;
                while (at < 0) at += a->size;
                while (at >= a->size) at -= a->size;
            } else at = at < 0 ? 0 : at < a->size ? at : a->size - 1;
            flat[i * a->width + j] = row + at, valid[i * a->width + j] = is && exists;
        }
    }
    return count * a->width;
}

/* The product of the k grid points nearest to each location along all axes, and which of them exist. */
int neighbours(
    int64_t threads, int64_t n, int64_t axes, int64_t k, const double *spacing, const int64_t *sizes, const double *x,
    int64_t *index, uint8_t *valid
) {
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; i++) {
        int64_t count = 1;
        index[i * k] = 0, valid[i * k] = 1;
        for (int64_t a = 0; a < axes; a++) {
            const int64_t *s = sizes + 4 * a;
            const Axis axis = {spacing[2 * a], spacing[2 * a + 1], s[0], s[1], s[2], s[3]};
            count = nearest(index + i * k, valid + i * k, count, &axis, x[i * axes + a]);
        }
    }
    return 0;
}

/* Indices and weights of the nodes along one axis, and the offset of the first; see `Axis.faded`. */
INLINE double along(const Axis *a, double x, int64_t *index, float *weight) {
    const double position = (x - a->low) / a->step, half = a->width / 2.0;
    if (a->size == 1 && !a->periodic) {
        index[0] = 0, weight[0] = 1.0f;
        return position;
    }
    double inner = position, total = 0.0, w[a->nodes];
    if (!a->periodic) inner = inner < -0.5 ? -0.5 : inner > a->size - 0.5 ? a->size - 0.5 : inner;
    const double first = floor(inner - half) + 1.0;
    for (int64_t j = 0; j < a->nodes; j++) {
        const double i = first + j;
        index[j] = to_index(a, i);
        w[j] = a->periodic || (i >= 0.0 && i < a->size) ? smooth_step(half - fabs(inner - i)) : 0.0;
        total += w[j];
    }
    for (int64_t j = 0; j < a->nodes; j++) weight[j] = w[j] / total;
    return position - first;
}

/* Sines, then cosines, of the offset from each node along an axis: turns of those of the first. `turn` has the
 * cosine and the sine of the angle of each wave between two nodes. */
INLINE void wave_features(float *y, double offset, const Axis *a, int64_t waves, const double *turn) {
    const float angle = offset * (M_PI / a->width);
    const double s1 = sinf(angle), c1 = cosf(angle);
    double s = 0.0, c = 1.0;
    for (int64_t v = 0; v < waves; v++) {
        const double before = s, cosine = turn[2 * v], sine = turn[2 * v + 1];
        s = before * c1 + c * s1, c = c * c1 - before * s1;
        double at_s = s, at_c = c;
        for (int64_t j = 0; j < a->nodes; j++) {
            y[j * 2 * waves + v] = at_s, y[j * 2 * waves + waves + v] = at_c;
            const double last = at_s;
            at_s = last * cosine - at_c * sine, at_c = at_c * cosine + last * sine;
        }
    }
}

/* Multiply `count` nodes by those of one more axis. */
INLINE int64_t product(
    int64_t *flat, float *weights, int64_t count, const Axis *a, const int64_t *index, const float *weight
) {
    for (int64_t i = count - 1; i >= 0; i--) {
        const int64_t row = flat[i] * a->size;
        const float w = weights[i];
        for (int64_t j = a->nodes - 1; j >= 0; j--)
            flat[i * a->nodes + j] = row + index[j], weights[i * a->nodes + j] = w * weight[j];
    }
    return count * a->nodes;
}

/* `lat` and `lon` are the numbers of these axes if there are poles, whose first node is `pole`, with `per_pole` each;
 * otherwise they are -1. There are `rows` nodes along all axes, and k nodes in total. */
int stencil(
    int64_t threads, int64_t n, int64_t axes, int64_t rows, int64_t k, int64_t waves, int64_t lat, int64_t lon,
    int64_t pole, int64_t per_pole, const double *spacing, const int64_t *sizes, const float *x, int64_t *index,
    float *weight, float *features
) {
    Axis axis[4];
    const int64_t each = 3 * rows; /* indices are twice as long as weights */
    double *turn = malloc((2 * axes * waves + 1) * sizeof(double));
    float *memory = scratch(threads, each);
    const int failed = !turn || !memory;
    for (int64_t a = 0; a < axes && !failed; a++) {
        const int64_t *s = sizes + 4 * a;
        axis[a] = (Axis){spacing[2 * a], spacing[2 * a + 1], s[0], s[1], s[2], s[3]};
        for (int64_t v = 0; v < waves; v++) {
            const double angle = (v + 1) * M_PI / axis[a].width;
            turn[2 * (a * waves + v)] = cos(angle), turn[2 * (a * waves + v) + 1] = sin(angle);
        }
    }
    #pragma omp parallel for schedule(static) num_threads(threads) if (!failed)
    for (int64_t i = 0; i < (failed ? 0 : n); i++) {
        int64_t *at = (int64_t *)own_part(memory, each), *flat = index + i * k, count = 1, poles = 1;
        float *w = (float *)(at + rows), *weights = weight + i * k, *y = features + i * rows * 2 * waves;
        const float *here = x + i * axes;
        flat[0] = 0, weights[0] = 1.0f;
        for (int64_t a = 0, r = 0; a < axes; r += axis[a].nodes, a++) {
            const double offset = along(axis + a, here[a], at + r, w + r);
            wave_features(y + r * 2 * waves, offset, axis + a, waves, turn + 2 * a * waves);
            count = product(flat, weights, count, axis + a, at + r, w + r);
        }
        if (lat < 0) continue;
        const double away = smooth_step((90.0 - fabs(here[lat])) * (2.0 / axis[lat].step));
        for (int64_t j = 0; j < count; j++) weights[j] *= away;
        flat[count] = 0, weights[count] = 1.0 - away;
        for (int64_t a = 0, r = 0; a < axes; r += axis[a].nodes, a++)
            if (a != lat && a != lon)
                poles = product(flat + count, weights + count, poles, axis + a, at + r, w + r);
        for (int64_t j = count; j < count + poles; j++) flat[j] += pole + (here[lat] > 0.0f ? per_pole : 0);
    }
    free(memory);
    free(turn);
    return failed ? OUT_OF_MEMORY : 0;
}
