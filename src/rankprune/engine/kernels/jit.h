// Machine code that is generated for one sparse layer.
#pragma once
#include <cstdint>

namespace rankprune {

// Computes 16 pixels of a chunk of output channels: rows of 16 floats at `out`, `out_bytes` apart. masks: kJitMasks of
// them, each with the pixels whose tap lies within the image; unused if the code has none.
typedef void (*JitKernel)(const float* in, const float* res, float* out, int64_t out_bytes, int64_t res_bytes,
                          const uint16_t* masks);

constexpr int64_t kJitWidth = 30;  // output channels at once: one register each, and two for inputs and a mask
constexpr int64_t kJitMasks = 8;   // k1 to k7, and a vector register

// The beginning of the memory that holds the code; it is not written after it was made.
struct Jit {
    uint64_t mark;               // kJitMark
    int64_t bytes;               // of all the memory
    int64_t outputs, width;      // output channels, and how many of them a chunk has; the last may have fewer
    int64_t low, high;           // floats that are read, relative to the input
    int64_t residual, relu;      // a residual is added, ReLU is applied
    int64_t masked;              // some taps need masks
    struct Chunk {
        int64_t entry;           // offset of its code from the beginning
        const float* values;     // its weights
    } chunk[1];                  // and one more, where those of the last end
};
constexpr uint64_t kJitMark = 0x6a69742d636f6e76;

static inline JitKernel kernel_of(const Jit& jit, int64_t chunk) {
    return reinterpret_cast<JitKernel>(reinterpret_cast<uintptr_t>(&jit) + uintptr_t(jit.chunk[chunk].entry));
}

}  // namespace rankprune
