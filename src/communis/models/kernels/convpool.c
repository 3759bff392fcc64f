/* Convolution over time, max-pooling by two and ReLU, forward and backward: models/convpool.py in C.

Plain C with the vector extensions of GCC and Clang; build.py compiles it once per instruction set.

Layouts: x (batch, steps, channels) in any strides; weight (kernel, channels, width); out and choice
(batch, steps / 2, width). A window is copied between zeros into `window`, rows of `channels` values.
The depth = kernel * channels values on which one step of the convolution depends are then contiguous.

Of two neighbouring steps only the larger one passes a gradient, and only where the ReLU is open;
`choice` says which. Backward sums over these steps alone, which are fewer than half of all.

Windows are computed one after the other, and sums over windows have the order of the batch: the bits
of a window's output do not depend on the other windows, and no result depends on threads. */

#include <stdint.h>
#include <string.h>

/* LANES floats fill a vector register. A tile of ROWS x COLUMNS vectors is summed in registers. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#define COLUMNS 2
#elif defined(__AVX2__)
#define LANES 8
#define ROWS 6
#define COLUMNS 2
#else
#error "compile for AVX2 or AVX-512"
#endif

#define NARROW 16 /* channels; with fewer, a dense product is faster than one over chosen steps */
#define BITS 64   /* chosen steps or channels that one word holds */

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

enum { CLOSED = 0, EVEN = 1, ODD = 2 }; /* which of two neighbours passes the gradient */

typedef struct {
    int64_t batch, steps, channels, kernel, width;
    int64_t batch_stride, step_stride, channel_stride; /* of x, in floats */
} Shape;

typedef struct {
    vector at[ROWS][COLUMNS];
} Tile;

const char *convpool_compiler(void) { return __VERSION__; }

/* ---- sizes in floats, multiples of LANES ---- */

static int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t depth_of(const Shape *s) { return s->kernel * s->channels; }
static int64_t padded_depth(const Shape *s) { return rounded_up(depth_of(s), LANES); }
static int64_t padded_width(const Shape *s) { return rounded_up(s->width, COLUMNS * LANES); }

/* A window between zeros, and as many behind it as the last tile or vector reads. */
static int64_t window_size(const Shape *s)
{
    int64_t rows = rounded_up(s->steps, ROWS) + s->kernel;
    return rounded_up(rows * s->channels + LANES + ROWS, LANES);
}

/* The gradient of the weights while it is summed. */
static int64_t sums_size(const Shape *s)
{
    if (s->channels < NARROW)
        return rounded_up(depth_of(s), ROWS) * padded_width(s);
    return s->width * padded_depth(s);
}

/* Two rows of words per channel, or the gradient before pooling. */
static int64_t chosen_size(const Shape *s) { return (s->steps + 4) * padded_width(s); }

/* Floats of working memory that forward and backward need, whichever needs more. */
int64_t convpool_scratch(const Shape *s)
{
    int64_t forward = window_size(s) + (1 + depth_of(s)) * padded_width(s);
    int64_t backward = 2 * window_size(s) + s->width * padded_depth(s) + sums_size(s) + chosen_size(s);
    return forward > backward ? forward : backward;
}

/* ---- what forward and backward share ---- */

static void zero(float *values, int64_t count) { memset(values, 0, count * sizeof(float)); }

/* Copies one window between its zeros. */
static void pad(const Shape *s, const float *x, float *window)
{
    int64_t before = s->kernel / 2 * s->channels;
    int64_t values = s->steps * s->channels;
    zero(window, before);
    if (s->channel_stride == 1 && s->step_stride == s->channels) {
        memcpy(window + before, x, values * sizeof(float));
    } else {
        for (int64_t c = 0; c < s->channels; c++)
            for (int64_t t = 0; t < s->steps; t++)
                window[before + t * s->channels + c] = x[t * s->step_stride + c * s->channel_stride];
    }
    zero(window + before + values, window_size(s) - before - values);
}

/* The sum over i of column[r * row_pitch + i * pitch] * panel[i * panel_pitch + v * LANES :]. */
static inline Tile product(const float *column, int64_t row_pitch, int64_t pitch,
                           const float *panel, int64_t panel_pitch, int64_t count)
{
    Tile sum = {0};
    for (int64_t i = 0; i < count; i++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < COLUMNS; v++)
                sum.at[r][v] += column[r * row_pitch + i * pitch]
                                * *(const vector *)(panel + i * panel_pitch + v * LANES);
    return sum;
}

/* ---- forward ---- */

/* Weights (depth, width) as panels of COLUMNS vectors, the last one filled up with zeros. */
static void pack(const Shape *s, const float *weight, float *panels)
{
    for (int64_t from = 0; from < s->width; from += COLUMNS * LANES) {
        int64_t left = s->width - from;
        int64_t columns = left < COLUMNS * LANES ? left : COLUMNS * LANES;
        for (int64_t i = 0; i < depth_of(s); i++) {
            memcpy(panels, weight + i * s->width + from, columns * sizeof(float));
            zero(panels + columns, COLUMNS * LANES - columns);
            panels += COLUMNS * LANES;
        }
    }
}

/* The larger of two neighbours, after bias and ReLU. NaN stays NaN; of equals the even one counts. */
static inline vector pooled(vector even, vector odd, vector bias, bytes *choice)
{
    mask is_odd = (odd > even) | (odd != odd); /* -1 where true */
    vector larger = (vector)(((mask)odd & is_odd) | ((mask)even & ~is_odd)) + bias;
    mask open = ~(larger <= 0);
    *choice = __builtin_convertvector((EVEN - is_odd) & open, bytes);
    return (vector)((mask)larger & open);
}

/* Stores one vector of a row, or as much of it as the row has. */
static inline void store(float *out, uint8_t *choice, vector value, bytes chosen, int64_t left)
{
    if (left >= LANES) {
        *(vector *)out = value;
        *(bytes *)choice = chosen;
    } else if (left > 0) {
        memcpy(out, &value, left * sizeof(float));
        memcpy(choice, &chosen, left);
    }
}

void convpool_forward(const Shape *s, const float *x, const float *weight, const float *bias,
                      float *out, uint8_t *choice, float *scratch)
{
    int64_t depth = depth_of(s), half = s->steps / 2, width = s->width;
    float *window = scratch;
    float *padded_bias = window + window_size(s);
    float *panels = padded_bias + padded_width(s);
    pack(s, weight, panels);
    zero(padded_bias, padded_width(s));
    memcpy(padded_bias, bias, width * sizeof(float));
    for (int64_t b = 0; b < s->batch; b++) {
        pad(s, x + b * s->batch_stride, window);
        for (int64_t from = 0; from < width; from += COLUMNS * LANES)
            for (int64_t t = 0; t < 2 * half; t += ROWS) {
                Tile sum = product(window + t * s->channels, s->channels, 1, panels + from * depth,
                                   COLUMNS * LANES, depth);
                for (int r = 0; r < ROWS && t + r < 2 * half; r += 2)
                    for (int v = 0; v < COLUMNS; v++) {
                        int64_t w = from + v * LANES;
                        int64_t place = (b * half + (t + r) / 2) * width + w;
                        vector offset = *(const vector *)(padded_bias + w);
                        bytes chosen;
                        vector value = pooled(sum.at[r][v], sum.at[r + 1][v], offset, &chosen);
                        store(out + place, choice + place, value, chosen, width - w);
                    }
            }
    }
}

/* ---- backward ---- */

/* into[0 : n vectors] += the sum over the bits k of `open` of factor[k * stride] * rows[place :],
   place being k * pitch, and `extra` more where bit k of `odd` is set. */
#define WEIGHTED_SUM(n)                                                                            \
    do {                                                                                           \
        vector sum[n] = {0};                                                                       \
        for (uint64_t left = open; left; left &= left - 1) {                                       \
            int64_t k = __builtin_ctzll(left);                                                     \
            const vector *row = (const vector *)(rows + k * pitch + (odd >> k & 1) * extra);       \
            for (int v = 0; v < n; v++)                                                            \
                sum[v] += factor[k * stride] * row[v];                                             \
        }                                                                                          \
        for (int v = 0; v < n; v++)                                                                \
            ((vector *)into)[v] += sum[v];                                                         \
        into += n * LANES;                                                                         \
        rows += n * LANES;                                                                         \
        vectors -= n;                                                                              \
    } while (0)

static inline void weighted_sum(float *into, int64_t vectors, const float *rows, int64_t pitch,
                                int64_t extra, uint64_t open, uint64_t odd, const float *factor,
                                int64_t stride)
{
    while (vectors >= 10)
        WEIGHTED_SUM(10);
    while (vectors >= 5)
        WEIGHTED_SUM(5);
    while (vectors >= 2)
        WEIGHTED_SUM(2);
    while (vectors >= 1)
        WEIGHTED_SUM(1);
}

/* Bit `shift` of up to 64 bytes, as one word. */
static inline uint64_t bits_of(const uint8_t *chosen, int64_t count, int shift)
{
    uint64_t bits = 0;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, chosen + i, 8);
        eight = eight >> shift & 0x0101010101010101u;
        bits |= (eight * 0x0102040810204080u >> 56) << i; /* gathers eight bits in the last byte */
    }
    for (; i < count; i++)
        bits |= (uint64_t)(chosen[i] >> shift & 1) << i;
    return bits;
}

static void add_to_bias(int64_t width, const float *restrict g, const uint8_t *restrict chosen,
                        float *restrict sums)
{
    for (int64_t w = 0; w < width; w++) {
        float value = g[w];
        sums[w] += chosen[w] == CLOSED ? 0 : value;
    }
}

/* Adds the gradient of the weights by one window to sums (width, padded depth). */
static void add_chosen(const Shape *s, const float *window, const uint8_t *chosen, const float *g,
                       int64_t pitch, uint64_t *is_open, float *sums)
{
    int64_t half = s->steps / 2, width = s->width, row = padded_depth(s);
    uint64_t *is_odd = is_open + width;
    for (int64_t from = 0; from < half; from += BITS) {
        int64_t end = from + BITS < half ? from + BITS : half;
        memset(is_open, 0, 2 * width * sizeof(uint64_t));
        for (int64_t t = from; t < end; t++)
            for (int64_t w = 0; w < width; w++) {
                uint64_t code = chosen[t * width + w];
                is_open[w] |= ((code & 1) | code >> 1) << (t - from);
                is_odd[w] |= (code >> 1) << (t - from);
            }
        for (int64_t w = 0; w < width; w++)
            weighted_sum(sums + w * row, row / LANES, window + 2 * from * s->channels,
                         2 * s->channels, s->channels, is_open[w], is_odd[w], g + from * pitch + w,
                         pitch);
    }
}

/* The gradient of one step after pooling as those of the two steps before. */
static void split(int64_t width, const float *restrict g, const uint8_t *restrict chosen,
                  float *restrict even, float *restrict odd)
{
    for (int64_t w = 0; w < width; w++) {
        float value = g[w];
        even[w] = chosen[w] == EVEN ? value : 0;
        odd[w] = chosen[w] == ODD ? value : 0;
    }
}

/* The same as add_chosen by a product with all steps, for sums (depth, padded width). `dense` (steps,
   padded width) is zero behind the width. */
static void add_dense(const Shape *s, const float *window, const uint8_t *chosen, const float *g,
                      int64_t pitch, float *dense, float *sums)
{
    int64_t half = s->steps / 2, width = s->width, wide = padded_width(s);
    for (int64_t t = 0; t < half; t++)
        split(width, g + t * pitch, chosen + t * width, dense + 2 * t * wide,
              dense + (2 * t + 1) * wide);
    for (int64_t from = 0; from < wide; from += COLUMNS * LANES)
        for (int64_t i = 0; i < depth_of(s); i += ROWS) {
            Tile sum = product(window + i, 1, s->channels, dense + from, wide, 2 * half);
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < COLUMNS; v++)
                    *(vector *)(sums + (i + r) * wide + from + v * LANES) += sum.at[r][v];
        }
}

/* The gradient of one window, between what falls on the zeros. weight (width, padded depth) */
static void backward_window(const Shape *s, const float *weight, const uint8_t *chosen,
                            const float *g, int64_t pitch, float *window)
{
    int64_t width = s->width, row = padded_depth(s);
    zero(window, window_size(s));
    for (int64_t from = 0; from < width; from += BITS) {
        int64_t count = width - from < BITS ? width - from : BITS;
        for (int64_t t = 0; t < s->steps / 2; t++)
            for (int odd = 0; odd <= 1; odd++)
                weighted_sum(window + (2 * t + odd) * s->channels, row / LANES, weight + from * row,
                             row, 0, bits_of(chosen + t * width + from, count, odd), 0,
                             g + t * pitch + from, 1);
    }
}

/* for_x and for_weight may be NULL: nobody asks for them. The channels of `gradient` are
   contiguous; its other strides may be zero. */
void convpool_backward(const Shape *s, const float *x, const float *weight, const uint8_t *choice,
                       const float *gradient, int64_t batch_stride, int64_t pitch, float *for_x,
                       float *for_weight, float *for_bias, float *scratch)
{
    int64_t depth = depth_of(s), half = s->steps / 2, width = s->width, row = padded_depth(s);
    int64_t narrow = s->channels < NARROW;
    float *window = scratch;
    float *window_gradient = window + window_size(s);
    float *transposed = window_gradient + window_size(s);
    float *sums = transposed + width * row;
    float *chosen_steps = sums + sums_size(s);

    zero(for_bias, width);
    if (for_weight) {
        zero(sums, sums_size(s));
        zero(chosen_steps, chosen_size(s));
    }
    if (for_x) {
        zero(transposed, width * row);
        for (int64_t w = 0; w < width; w++)
            for (int64_t i = 0; i < depth; i++)
                transposed[w * row + i] = weight[i * width + w];
    }
    for (int64_t b = 0; b < s->batch; b++) {
        const float *g = gradient + b * batch_stride;
        const uint8_t *chosen = choice + b * half * width;
        for (int64_t t = 0; t < half; t++)
            add_to_bias(width, g + t * pitch, chosen + t * width, for_bias);
        if (for_weight) {
            pad(s, x + b * s->batch_stride, window);
            if (narrow)
                add_dense(s, window, chosen, g, pitch, chosen_steps, sums);
            else
                add_chosen(s, window, chosen, g, pitch, (uint64_t *)chosen_steps, sums);
        }
        if (for_x) {
            backward_window(s, transposed, chosen, g, pitch, window_gradient);
            memcpy(for_x + b * s->steps * s->channels,
                   window_gradient + s->kernel / 2 * s->channels,
                   s->steps * s->channels * sizeof(float));
        }
    }
    if (for_weight)
        for (int64_t i = 0; i < depth; i++)
            for (int64_t w = 0; w < width; w++)
                for_weight[i * width + w] = sums[narrow ? i * padded_width(s) + w : w * row + i];
}
