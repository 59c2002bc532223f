// The plain C interface of the kernels, and the parameters of each operator.
//
// Every value lives in one arena of floats as rows of 8 lanes: [slab][channel][row][8]. For one image a lane is a pixel
// of a row of 8 (slab: block of 8 columns; row: y), or a token; for 8 images at once a lane is an image (slab: y; row: x).
// All fields are 8 bytes wide, so that no padding differs between compilers and the loader can describe them easily.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rankprune {

constexpr int kLanes = 8;
constexpr int64_t kPlaneChannels = 8;    // channels of a task that makes planes
constexpr int64_t kLinearOutputs = 16;   // outputs of a task of a linear layer
constexpr int64_t kGatherCount = 4096;   // elements of a task of a gather
constexpr int64_t kTokens = 16;          // rows of a task of a product or of attention
constexpr int64_t kBinaryRows = 512;     // rows of a task of a sum, a product or an activation

struct View {
    int64_t at, slab, chan;  // in floats; rows follow one another
};

enum Kind : int64_t { kConv, kPlanes, kPool, kWindow, kBinary, kNorm, kSoftmax, kAttention, kMean, kLinear, kGather,
                      kBorder, kMove, kProduct, kKinds };
enum Activation : int64_t { kNone, kRelu, kRelu6, kHardswish, kGelu, kSigmoid, kSilu, kHardsigmoid, kGeluTanh, kTanh,
                            kLeakyRelu, kElu, kMish, kSoftplus, kClamp, kExp, kSqrt, kAbs, kActivations };
// Of a result. first and second: slope (leaky ReLU), a and b of a (exp(b x) - 1) (ELU, CELU), beta and threshold
// (softplus), lowest and highest (clamp).
struct Active {
    int64_t kind;
    double first, second;
};

// Sparse convolution, and linear layers over tokens or over lanes of images: for each output channel a list of
// (offset of the tap in rows, value).
struct Conv {
    View in, out, res;  // res.at < 0: no residual
    int64_t step;       // floats between the inputs of two successive output rows
    int64_t slabs, rows, channels;
    Active activation;
    int64_t width, height;        // kernel shape: output channels at once, rows at once
    int64_t groups, blocks;       // of output channels to share out; of input channels to stay in cache
    const float *values, *bias;   // values: `width` a tap
    const uint16_t* offsets;      // rows, relative to base
    const int64_t *starts, *base; // [block][chunk of `width` channels] (starts has one more)
    const int64_t* splits;        // groups + 1 bounds, in chunks
};

// Copies of a blocked image, shifted and phase-split so that each tap of a window is an aligned row.
struct Planes {
    View in;            // chan: floats between channels, slab: between blocks of 8 columns
    int64_t plain;      // the source is [channel][y][x] instead (slab and lanes unused)
    int64_t channels, height, width;
    int64_t at, slab, chan;              // destination
    int64_t slabs, rows, taps, phases;   // planes of a channel: [phase][tap]
    int64_t stride_x, stride_y;
    const int64_t *x_first, *y_first;    // input column of lane 0 of slab 0, by tap; input row of row 0, by phase
    int64_t skip;                        // this plane is there already (-1: none)
    double fill;
};

// Pooling of one image through planes of one channel in the thread's scratch.
struct Pool {
    Planes planes;          // at/slab/chan unused
    View out;
    int64_t rows, count, average;
    const int64_t* offsets; // of the taps, in rows
    const float* scale;     // average: reciprocal counts, [slab][row][8]
};

// Pooling of 8 images at once: rows and slabs are bounded, lanes never meet.
struct Window {
    View in, out;
    int64_t channels, height, width, out_height, out_width;
    int64_t kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, average, count_pad;
};

enum Operation : int64_t { kAdd, kMul, kSub, kReverseSub, kDiv, kReverseDiv, kMaximum, kMinimum, kPrelu, kOperations };
struct Binary {  // out = activation(a op b)
    View a, b, out;             // b broadcasts along slabs, channels or rows where its stride is 0
    int64_t b_row;              // floats between rows of b: 0 or 8
    int64_t slabs, channels, rows, operation;
    Active activation;
    const float* constant;      // b lies there instead of in the arena (null: in the arena)
    int64_t unary;              // only the activation
};

struct Norm {  // LayerNorm over channels
    View in, out;
    int64_t slabs, channels, rows;
    const float *weight, *bias;
    double eps;
};

struct Softmax {
    View in, out;
    int64_t channels, rows, groups, flat;  // over the channels of each group; flat > 0: over so many floats of a vector
};

// One operand of a product of matrices, for each group and head: [row][depth], in floats.
struct Operand {
    int64_t at, group, head, row, depth;
};

// out[column][row] = scale * sum over depth of a[row][depth] b[column][depth]; rows of a lie together, as those of out.
struct Product {
    Operand a, b, out;  // out: depth is the stride of its columns
    int64_t groups, heads, rows, columns, depth;
    double scale;
};

// softmax(scale q k' + bias) v for each group (a window, say) and head; tokens of q and of out lie together.
struct Attention {
    Operand q, k, v, out;         // rows: tokens, keys, keys, tokens
    Operand bias;                 // row: 0 or 1, the stride of tokens; depth: that of keys. at -1: none
    int64_t groups, heads, dim, value_dim, tokens, keys;
    int64_t scale_group, scale_head;
    const float *scale, *constant;  // scales; the bias if it is not in the arena
};

struct Mean {  // over all pixels of a channel
    View in;
    int64_t at, out_chan, slabs, channels, rows, width, images;  // images: lanes are images
};

struct Linear {  // of one vector
    int64_t at, out, res, inputs, outputs;
    Active activation;
    const float *values, *bias;
    const uint16_t* columns;  // null: dense, rows of `inputs` rounded up to 8
    const int64_t* starts;
};

enum How : int64_t { kFloats, kRows, kIntoLanes, kOutOfLanes };
struct Gather {  // out[to[i]] = in[from[i]], or 0 where from < 0
    int64_t at, out, count, move;   // floats; whole rows; or image after image into lanes, and back
    const int32_t *from, *to;
    const float* constant;          // the source instead of the arena
};

enum Inner : int64_t { kCopy, kTranspose, kScalar };
constexpr int64_t kAxes = 8;  // loops of a nest
struct Nest {                 // floats source + sum i * from go to target + sum i * to, for all i below the sizes
    int64_t first;            // task; the first of the next nest ends its own
    int64_t inner;            // how the last two loops run: rows of floats that lie together on both sides; blocks of
                              // 8 x 8, turned (the loop before the last reads, the last writes neighbours); one by one
    int64_t chunk;            // of the outer loops, counted as one, in a task
    int64_t source, target;
    struct { int64_t size, from, to; } axis[kAxes];
};
struct Move {
    int64_t at, out, count;   // floats; nests
    const Nest* nests;
    const float* constant;    // the source instead of the arena
};

struct Border {  // zeroes the frame around the images of a padded value
    int64_t at, slabs, channels, rows;                    // with padding
    int64_t top, bottom, left, right;
};

}  // namespace rankprune

#if defined(_WIN32)
#define RP_API extern "C" __declspec(dllexport)
#else
#define RP_API extern "C" __attribute__((visibility("default")))
#endif

struct rp_program;
struct rp_array {  // an array that belongs to an operator
    const void* data;
    int64_t bytes;
};
struct rp_copy {
    float* data;
    int64_t at, count;  // in floats, in the arena; data of the next group follows at once
};
RP_API int rp_version();
RP_API const char* rp_variant(int index);  // usable on this CPU, best first, "portable" last; null past the end
RP_API int64_t rp_params_size(int64_t kind);
RP_API rp_program* rp_new(const char* variant, int64_t threads, int64_t arena, int64_t scratch);  // sizes in floats
// Null, or what is wrong with the operator: it would leave the arena, or the arrays it points to, which are given too.
RP_API const char* rp_add(rp_program*, int64_t kind, const void* params, int64_t tasks, const rp_array* arrays,
                          int64_t count);
// Copies in, runs the operators, copies out; 1: no memory, 2: a copy beyond the arena. seconds (or null): the time of
// each operator is added.
RP_API int rp_run(rp_program*, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, double* seconds);
// The same for several groups of images, each run by one of `workers` threads on its own.
RP_API int rp_run_groups(rp_program*, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, int64_t groups,
                         int64_t workers);
RP_API double rp_time(rp_program*, int64_t index, int64_t repeats);  // least seconds of one operator, run alone
RP_API double rp_peak(const char* variant, int64_t threads);         // measured FMA peak, GFLOP/s
RP_API void rp_free(rp_program*);
