// The C interface of the kernels, and the parameters of each operator.
//
// Every value is in one arena of floats, as rows of 8 lanes: [slab][channel][row][8]. For one image a lane is a pixel
// of a row of 8 (slab: block of 8 columns; row: y), or a token; for 8 images at once a lane is an image (slab: y; row: x).
// All fields are 8 bytes wide, so that compilers insert no padding and the loader can describe them easily.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rankprune {

// Constants that both sides of the interface share; the loader reads each by name (rp_constant).
#define RP_CONSTANTS(X)                                                        \
    X(kLanes, 8)                                                               \
    X(kPlaneChannels, 8)   /* channels of a task that makes planes */          \
    X(kLinearOutputs, 16)  /* outputs of a task of a linear layer */           \
    X(kGatherCount, 4096)  /* elements of a task of a gather */                \
    X(kTokens, 32)         /* rows of a task of a product or of attention */   \
    X(kBinaryRows, 512)    /* rows of a task of a binary operator */           \
    X(kAxes, 8)            /* loops of a nest of a move */                     \
    X(kMostThreads, 1024)
#define RP_CONSTANT(name, value) constexpr int64_t name = value;
RP_CONSTANTS(RP_CONSTANT)
#undef RP_CONSTANT

// Names of enumerators, as the loader writes them; the position in the list is the value of the field.
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
enum How : int64_t { RP_MOVES(RP_ENUM) };   // of a gather: floats; whole rows; eight images into lanes, and back
enum Inner : int64_t { RP_INNER(RP_ENUM) };

// ---- Parameters. A list of fields makes the structure and the text that the loader compares with its own (rp_fields).
#define RP_FIELD(type, ...) type __VA_ARGS__;
#define RP_STRUCT(Name, FIELDS) struct Name { FIELDS(RP_FIELD) };
typedef const float* Floats;
typedef const int64_t* Longs;
typedef const uint16_t* Shorts;
typedef const int32_t* Ints;
typedef const uint8_t* Bytes;

// Offset and strides in floats; the rows of a channel are contiguous.
#define RP_VIEW(F) F(int64_t, at, slab, chan)
RP_STRUCT(View, RP_VIEW)

// Activation of a result. first and second: slope (leaky ReLU), a and b of a (exp(b x) - 1) (ELU, CELU), beta and
// threshold (softplus), lowest and highest (clamp).
#define RP_ACTIVE(F) F(int64_t, kind) F(double, first, second)
RP_STRUCT(Active, RP_ACTIVE)

// One operand of a product of matrices, for each group and head: [row][depth], in floats.
#define RP_OPERAND(F) F(int64_t, at, group, head, row, depth)
RP_STRUCT(Operand, RP_OPERAND)

// Sparse convolution, and linear layers over tokens or over eight images: for each output channel a list of
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

// The same by code that was generated for the layer (rp_jit_new), in vectors of 16 floats, which are two rows.
#define RP_JIT_CONV(F)                                                                                              \
    F(View, in, out, res)                                                                                           \
    F(int64_t, columns, slabs, rows, channels)                                                                      \
    F(Active, activation)                                                                                           \
    F(int64_t, height, groups, by_group)                                                                            \
    F(Bytes, code)                                                                                                  \
    F(Shorts, masks)                   /* [vector][kJitMasks]: pixels whose tap is within the image; null: none needed */ \
    F(Longs, splits)                   /* groups + 1 bounds, in chunks of the code's width */                       \
    F(Bytes, next)                     /* code of the next layer, to load into the cache; null if there is none */  \
    F(int64_t, next_chunks)            /* the tasks of this layer share its first chunks: 1 if all begin with the first */
RP_STRUCT(JitConv, RP_JIT_CONV)

// Copies of a blocked image, shifted and phase-split so that each tap of a window is an aligned row.
#define RP_PLANES(F)                                                                                                \
    F(View, in)                              /* chan: floats between channels, slab: between blocks of 8 columns */ \
    F(int64_t, plain)                        /* the source is [channel][y][x] instead (slab and lanes unused) */    \
    F(int64_t, channels, height, width)                                                                             \
    F(int64_t, at, slab, chan)               /* destination */                                                      \
    F(int64_t, slabs, rows, taps, phases)    /* planes of a channel: [phase][tap] */                                \
    F(int64_t, stride_x, stride_y)                                                                                  \
    F(Longs, x_first, y_first)               /* input column of lane 0 of slab 0, by tap; input row of row 0, by phase */ \
    F(int64_t, skip)                         /* this plane is there already (-1: none) */                           \
    F(double, fill)
RP_STRUCT(Planes, RP_PLANES)

// The images that a stride divides an image into, with their rows joined.
#define RP_PHASES(F)                                                                                                \
    F(View, in)                                                                                                     \
    F(int64_t, plain)                        /* the source is [channel][y][x] instead (slab unused) */              \
    F(int64_t, channels, height, width)                                                                             \
    F(View, out)                             /* slab: floats between the images of a channel */                     \
    F(int64_t, stride_y, stride_x, rows, columns)                                                                   \
    F(int64_t, count)                        /* of the images to make */                                            \
    F(Longs, first)                          /* row and column of the first pixel of each */
RP_STRUCT(Phases, RP_PHASES)

// Pooling of one image through planes of one channel in the thread's scratch.
#define RP_POOL(F)                                                                                                  \
    F(Planes, planes)                        /* at, slab, chan unused */                                            \
    F(View, out)                                                                                                    \
    F(int64_t, columns)                      /* of out, whose rows follow one another; 0: it is in slabs */         \
    F(int64_t, rows, count, average)                                                                                \
    F(Longs, offsets)                        /* of the taps, in rows */                                             \
    F(Floats, scale)                         /* average: reciprocal counts, [slab][row][8] */
RP_STRUCT(Pool, RP_POOL)

// Pooling of 8 images at once; windows are clipped to the image.
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

// Softmax over the channels of each group, or over a vector of `flat` floats. safe: all -inf gives 0, not NaN.
#define RP_SOFTMAX(F) F(View, in, out) F(int64_t, channels, rows, groups, flat, safe)
RP_STRUCT(Softmax, RP_SOFTMAX)

// out[column][row] = scale * sum over depth of a[row][depth] b[column][depth]; the rows of a and of out are contiguous.
#define RP_PRODUCT(F)                                                                                               \
    F(Operand, a, b, out)                    /* out: depth is the stride of its columns */                          \
    F(int64_t, groups, heads, rows, columns, depth)                                                                 \
    F(double, scale)
RP_STRUCT(Product, RP_PRODUCT)

// softmax(scale q k' + bias) v for each group (such as a window) and head; the tokens of q and of out are contiguous.
#define RP_ATTENTION(F)                                                                                             \
    F(Operand, q, k, v, out)                 /* rows: tokens, keys, keys, tokens */                                 \
    F(Operand, bias)                         /* row: 0 or 1, the stride of tokens; depth: of keys. at -1: none */   \
    F(int64_t, groups, heads, dim, value_dim, tokens, keys, scale_group, scale_head, safe)                          \
    F(Floats, scale, constant)               /* scales; the bias if it is not in the arena */
RP_STRUCT(Attention, RP_ATTENTION)

// Mean over all pixels of a channel. images: lanes are images.
#define RP_MEAN(F) F(View, in) F(int64_t, at, out_chan, slabs, channels, rows, width, images)
RP_STRUCT(Mean, RP_MEAN)

// Linear layer of one vector. If columns is null it is dense, with rows of `inputs` rounded up to 8.
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

struct Nest {       // float source + sum i * from moves to target + sum i * to, for all i below the sizes
    int64_t first;  // first task; the tasks of the nest end where those of the next nest begin
    int64_t inner;  // how the last two loops run: copying contiguous rows; transposing blocks of 8 x 8
                    // (the second last loop reads contiguously, the last one writes); one by one
    int64_t chunk;  // iterations of the combined outer loops per task
    int64_t source, target;
    struct { int64_t size, from, to; } axis[kAxes];
};
typedef const Nest* Nests;
#define RP_MOVE(F)                                                                                                  \
    F(int64_t, at, out, count)               /* floats; nests */                                                    \
    F(Nests, nests)                                                                                                 \
    F(Floats, constant)                      /* the source instead of the arena */
RP_STRUCT(Move, RP_MOVE)

// Zeroes the frame around the images of a padded value; slabs and rows include the padding.
#define RP_BORDER(F) F(int64_t, at, slabs, channels, rows, top, bottom, left, right)
RP_STRUCT(Border, RP_BORDER)

// ---- The operators: parameters, their fields, and the name in check_NAME and run_NAME.
#define RP_OPERATORS(X)                                                                                             \
    X(Conv, RP_CONV, conv)                                                                                          \
    X(Planes, RP_PLANES, planes)                                                                                    \
    X(Phases, RP_PHASES, phases)                                                                                    \
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
    X(Product, RP_PRODUCT, product)                                                                                 \
    X(JitConv, RP_JIT_CONV, jit_conv)
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
    int64_t at, count;  // in floats, in the arena; the data of the next group is contiguous
};
// A layer to generate code for: for each chunk of `width` output channels a list of its non-zeros, by input row.
struct rp_taps {
    int64_t outputs, width, count, residual, relu;
    const float *values, *bias;  // the code refers to the values, so they must outlive it; the bias too
    const int32_t* offsets;      // floats, relative to base
    const uint8_t* channels;     // output channel within the chunk
    const int64_t *starts, *base;  // of each chunk (starts has one more)
    const uint8_t* masks;        // number of the mask that each tap needs, 0 for none; null: none needs one
};
RP_API int rp_version();
RP_API const char* rp_variant(int index);  // usable on this CPU, best first, "portable" last; null past the end
RP_API const char* rp_fields(int64_t kind);      // "Norm: View in, out; int64_t slabs, ...;"; null past the end
RP_API const char* rp_names(const char* choice); // "activations", "operations", "moves", "inner": "none relu ..."
RP_API int64_t rp_constant(const char* name);    // -1 if there is no such constant
RP_API int64_t rp_lanes(const char* variant);    // floats of its widest vectors; 0 if this CPU lacks it
RP_API rp_program* rp_new(const char* variant, int64_t threads, int64_t arena, int64_t scratch);  // sizes in floats
// Returns null, or why the operator is invalid: it would access memory outside of the arena or of the given arrays.
RP_API const char* rp_add(rp_program*, int64_t kind, const void* params, int64_t tasks, const rp_array* arrays,
                          int64_t count);
// Copies in, runs the operators, copies out. Returns 1 if memory is short, 2 if a copy exceeds the arena. The time of
// each operator is added to seconds, unless it is null.
RP_API int rp_run(rp_program*, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, double* seconds);
// The same for several groups of images, each run by one of `workers` threads.
RP_API int rp_run_groups(rp_program*, const rp_copy* in, int64_t ins, const rp_copy* out, int64_t outs, int64_t groups,
                         int64_t workers);
// Minimum seconds of one operator, run alone. cold: its weights are not in the caches, where the system can do that.
RP_API double rp_time(rp_program*, int64_t index, int64_t repeats, int64_t cold);
RP_API double rp_peak(const char* variant, int64_t threads);         // of the widest vectors, GFLOP/s
RP_API double rp_round_trip(int64_t turns);                           // seconds of a cache line between two threads
// The CPUs out of those allowed on which `count` threads should run if the first is on `cpu`; 0 if anywhere. root: the
// system's description of its CPUs.
RP_API int64_t rp_near(const char* root, int64_t cpu, int64_t count, const int64_t* allowed, int64_t cpus,
                       int64_t* near);
RP_API void rp_free(rp_program*);
// Memory with the code of a layer; null if the lists are invalid or this system does not allow generated code.
RP_API void* rp_jit_new(const rp_taps*);
RP_API int64_t rp_jit_bytes(const void*);
RP_API void rp_jit_free(void*);
