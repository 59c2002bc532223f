// The plain C interface of the kernels, and the parameters of each operator.
//
// Every value lives in one arena of floats as rows of 8 lanes: [slab][channel][row][8]. For one image a lane is a pixel
// of a row of 8 (slab: block of 8 columns; row: y), or a token; for 8 images at once a lane is an image (slab: y; row: x).
// All fields are 8 bytes wide, so that no padding differs between compilers and the loader can describe them easily.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rankprune {

// What both sides of the interface must agree on; the loader asks for each by name (rp_constant).
#define RP_CONSTANTS(X)                                                        \
    X(kLanes, 8)                                                               \
    X(kPlaneChannels, 8)   /* channels of a task that makes planes */          \
    X(kLinearOutputs, 16)  /* outputs of a task of a linear layer */           \
    X(kGatherCount, 4096)  /* elements of a task of a gather */                \
    X(kTokens, 16)         /* rows of a task of a product or of attention */   \
    X(kBinaryRows, 512)    /* rows of a task of a binary operator */           \
    X(kAxes, 8)            /* loops of a nest of a move */                     \
    X(kMostThreads, 1024)
#define RP_CONSTANT(name, value) constexpr int64_t name = value;
RP_CONSTANTS(RP_CONSTANT)
#undef RP_CONSTANT

// Names of choices, as the loader writes them: the position in the list is the number in a field.
#define RP_ACTIVATIONS(X)                                                                                              \
    X(None, none) X(Relu, relu) X(Relu6, relu6) X(Hardswish, hardswish) X(Gelu, gelu) X(Sigmoid, sigmoid) X(Silu, silu) \
    X(Hardsigmoid, hardsigmoid) X(GeluTanh, gelu_tanh) X(Tanh, tanh) X(LeakyRelu, leaky_relu) X(Elu, elu) X(Mish, mish) \
    X(Softplus, softplus) X(Clamp, clamp) X(Exp, exp) X(Sqrt, sqrt) X(Abs, abs)
#define RP_OPERATIONS(X)                                                                            \
    X(Add, add) X(Mul, mul) X(Sub, sub) X(ReverseSub, rsub) X(Div, div) X(ReverseDiv, rdiv)          \
    X(Maximum, maximum) X(Minimum, minimum) X(Prelu, prelu)
#define RP_MOVES(X) X(Floats, floats) X(Rows, rows) X(IntoLanes, into_lanes) X(OutOfLanes, out_of_lanes)
#define RP_INNER(X) X(Copy, copy) X(Transpose, transpose) X(Scalar, scalar)
#define RP_ENUM(name, text) k##name,
enum Activation : int64_t { RP_ACTIVATIONS(RP_ENUM) kActivations };
enum Operation : int64_t { RP_OPERATIONS(RP_ENUM) kOperations };
enum How : int64_t { RP_MOVES(RP_ENUM) };   // of a gather: floats; whole rows; image after image into lanes, and back
enum Inner : int64_t { RP_INNER(RP_ENUM) };

// ---- Parameters. A list of fields makes the structure and the text that the loader compares with its own (rp_fields).
#define RP_FIELD(type, ...) type __VA_ARGS__;
#define RP_STRUCT(Name, FIELDS) struct Name { FIELDS(RP_FIELD) };
typedef const float* Floats;
typedef const int64_t* Longs;
typedef const uint16_t* Shorts;
typedef const int32_t* Ints;

// In floats; rows follow one another.
#define RP_VIEW(F) F(int64_t, at, slab, chan)
RP_STRUCT(View, RP_VIEW)

// Activation of a result. first and second: slope (leaky ReLU), a and b of a (exp(b x) - 1) (ELU, CELU), beta and
// threshold (softplus), lowest and highest (clamp).
#define RP_ACTIVE(F) F(int64_t, kind) F(double, first, second)
RP_STRUCT(Active, RP_ACTIVE)

// One operand of a product of matrices, for each group and head: [row][depth], in floats.
#define RP_OPERAND(F) F(int64_t, at, group, head, row, depth)
RP_STRUCT(Operand, RP_OPERAND)

// Sparse convolution, and linear layers over tokens or over lanes of images: for each output channel a list of
// (offset of the tap in rows, value).
#define RP_CONV(F)                                                                                                  \
    F(View, in, out, res)              /* res.at < 0: no residual */                                                \
    F(int64_t, columns)                /* of out and res, whose rows follow one another; 0: they are in slabs */    \
    F(int64_t, step)                   /* floats between the inputs of two successive output rows */                \
    F(int64_t, slabs, rows, channels)                                                                               \
    F(Active, activation)                                                                                           \
    F(int64_t, width, height, lanes)   /* kernel shape: output channels and rows at once, floats of a vector */     \
    F(int64_t, groups, blocks)         /* of output channels to share out; of input channels to stay in cache */    \
    F(int64_t, by_group)               /* tasks of a group follow one another; else those of a slab do */           \
    F(Floats, values, bias)            /* values: `width` for each tap */                                           \
    F(Shorts, offsets)                 /* rows, relative to base */                                                 \
    F(Longs, starts, base)             /* [block][chunk of `width` channels] (starts has one more) */               \
    F(Longs, splits)                   /* groups + 1 bounds, in chunks */
RP_STRUCT(Conv, RP_CONV)

// Copies of a blocked image, shifted and phase-split so that each tap of a window is an aligned row.
#define RP_PLANES(F)                                                                                                \
    F(View, in)                              /* chan: floats between channels, slab: between blocks of 8 columns */ \
    F(int64_t, plain)                        /* the source is [channel][y][x] instead (slab and lanes unused) */    \
    F(int64_t, channels, height, width)                                                                             \
    F(int64_t, at, slab, chan)               /* destination */                                                      \
    F(int64_t, columns)                      /* of the only plane, whose rows follow one another; 0: in slabs */    \
    F(int64_t, slabs, rows, taps, phases)    /* planes of a channel: [phase][tap] */                                \
    F(int64_t, stride_x, stride_y)                                                                                  \
    F(Longs, x_first, y_first)               /* input column of lane 0 of slab 0, by tap; input row of row 0, by phase */ \
    F(int64_t, skip)                         /* this plane is there already (-1: none) */                           \
    F(double, fill)
RP_STRUCT(Planes, RP_PLANES)

// Pooling of one image through planes of one channel in the thread's scratch.
#define RP_POOL(F)                                                                                                  \
    F(Planes, planes)                        /* at, slab, chan unused */                                            \
    F(View, out)                                                                                                    \
    F(int64_t, rows, count, average)                                                                                \
    F(Longs, offsets)                        /* of the taps, in rows */                                             \
    F(Floats, scale)                         /* average: reciprocal counts, [slab][row][8] */
RP_STRUCT(Pool, RP_POOL)

// Pooling of 8 images at once: rows and slabs are bounded, lanes never meet.
#define RP_WINDOW(F)                                                                                                \
    F(View, in, out)                                                                                                \
    F(int64_t, channels, height, width, out_height, out_width)                                                      \
    F(int64_t, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, average, count_pad)
RP_STRUCT(Window, RP_WINDOW)

// out = activation(a op b)
#define RP_BINARY(F)                                                                                                \
    F(View, a, b, out)                       /* b broadcasts along slabs, channels or rows where its stride is 0 */ \
    F(int64_t, b_row)                        /* floats between rows of b: 0 or 8 */                                 \
    F(int64_t, slabs, channels, rows, operation)                                                                    \
    F(Active, activation)                                                                                           \
    F(Floats, constant)                      /* b lies there instead of in the arena (null: in the arena) */        \
    F(int64_t, unary)                        /* only the activation */
RP_STRUCT(Binary, RP_BINARY)

// LayerNorm over channels.
#define RP_NORM(F) F(View, in, out) F(int64_t, slabs, channels, rows) F(Floats, weight, bias) F(double, eps)
RP_STRUCT(Norm, RP_NORM)

// Over the channels of each group; flat > 0: over so many floats of a vector. safe: all -inf gives 0, not NaN.
#define RP_SOFTMAX(F) F(View, in, out) F(int64_t, channels, rows, groups, flat, safe)
RP_STRUCT(Softmax, RP_SOFTMAX)

// out[column][row] = scale * sum over depth of a[row][depth] b[column][depth]; rows of a lie together, as those of out.
#define RP_PRODUCT(F)                                                                                               \
    F(Operand, a, b, out)                    /* out: depth is the stride of its columns */                          \
    F(int64_t, groups, heads, rows, columns, depth)                                                                 \
    F(double, scale)
RP_STRUCT(Product, RP_PRODUCT)

// softmax(scale q k' + bias) v for each group (a window, say) and head; tokens of q and of out lie together.
#define RP_ATTENTION(F)                                                                                             \
    F(Operand, q, k, v, out)                 /* rows: tokens, keys, keys, tokens */                                 \
    F(Operand, bias)                         /* row: 0 or 1, the stride of tokens; depth: of keys. at -1: none */   \
    F(int64_t, groups, heads, dim, value_dim, tokens, keys, scale_group, scale_head, safe)                          \
    F(Floats, scale, constant)               /* scales; the bias if it is not in the arena */
RP_STRUCT(Attention, RP_ATTENTION)

// Over all pixels of a channel. images: lanes are images.
#define RP_MEAN(F) F(View, in) F(int64_t, at, out_chan, slabs, channels, rows, width, images)
RP_STRUCT(Mean, RP_MEAN)

// Of one vector. columns null: dense, rows of `inputs` rounded up to 8.
#define RP_LINEAR(F)                                                                                                \
    F(int64_t, at, out, res, inputs, outputs)                                                                       \
    F(Active, activation)                                                                                           \
    F(Floats, values, bias)                                                                                         \
    F(Shorts, columns)                                                                                              \
    F(Longs, starts)
RP_STRUCT(Linear, RP_LINEAR)

// out[to[i]] = in[from[i]], or 0 where from < 0.
#define RP_GATHER(F)                                                                                                \
    F(int64_t, at, out, count, move)                                                                                \
    F(Ints, from, to)                                                                                               \
    F(Floats, constant)                      /* the source instead of the arena */
RP_STRUCT(Gather, RP_GATHER)

struct Nest {       // floats source + sum i * from go to target + sum i * to, for all i below the sizes
    int64_t first;  // task; the first of the next nest ends its own
    int64_t inner;  // how the last two loops run: rows of floats that lie together on both sides; blocks of
                    // 8 x 8, turned (the loop before the last reads, the last writes neighbours); one by one
    int64_t chunk;  // of the outer loops, counted as one, in a task
    int64_t source, target;
    struct { int64_t size, from, to; } axis[kAxes];
};
typedef const Nest* Nests;
#define RP_MOVE(F)                                                                                                  \
    F(int64_t, at, out, count)               /* floats; nests */                                                    \
    F(Nests, nests)                                                                                                 \
    F(Floats, constant)                      /* the source instead of the arena */
RP_STRUCT(Move, RP_MOVE)

// Zeroes the frame around the images of a padded value; slabs and rows with padding.
#define RP_BORDER(F) F(int64_t, at, slabs, channels, rows, top, bottom, left, right)
RP_STRUCT(Border, RP_BORDER)

// ---- The operators: parameters, their fields, and the name in run_NAME (each instruction set) and Checker::NAME.
#define RP_OPERATORS(X)                                                                                             \
    X(Conv, RP_CONV, conv)                                                                                          \
    X(Planes, RP_PLANES, planes)                                                                                    \
    X(Pool, RP_POOL, pool)                                                                                          \
    X(Window, RP_WINDOW, window)                                                                                    \
    X(Binary, RP_BINARY, binary)                                                                                    \
    X(Norm, RP_NORM, norm)                                                                                          \
    X(Softmax, RP_SOFTMAX, softmax)                                                                                 \
    X(Attention, RP_ATTENTION, attention)                                                                           \
    X(Mean, RP_MEAN, mean)                                                                                          \
    X(Linear, RP_LINEAR, linear)                                                                                    \
    X(Gather, RP_GATHER, gather)                                                                                    \
    X(Border, RP_BORDER, border)                                                                                    \
    X(Move, RP_MOVE, move)                                                                                          \
    X(Product, RP_PRODUCT, product)
#define RP_KIND(Name, FIELDS, name) k##Name,
enum Kind : int64_t { RP_OPERATORS(RP_KIND) kKinds };
#undef RP_KIND
#undef RP_ENUM

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
RP_API const char* rp_fields(int64_t kind);      // "Norm: View in, out; int64_t slabs, ...;"; null past the end
RP_API const char* rp_names(const char* choice); // "activations", "operations", "moves", "inner": "none relu ..."
RP_API int64_t rp_constant(const char* name);    // -1: there is none of this name
RP_API int64_t rp_lanes(const char* variant);    // floats of its widest vectors; 0: not for this CPU
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
RP_API double rp_round_trip(int64_t turns);                           // of a cache line between two threads, seconds
RP_API void rp_free(rp_program*);
