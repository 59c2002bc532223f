// Generates the machine code of a sparse layer.
//
// A chunk of up to 30 output channels has one accumulator of 16 pixels each in the registers. The code loads each input
// channel that any of them needs once, and multiplies it with the weight of each that has one:
//     vmovups zmm31, [input channel c]; vfmadd231ps zmm3, zmm31, [weight]{1to16}; vfmadd231ps zmm17, ...
// A list of taps in memory cannot do that, because a register cannot be indexed. So the kernels that read lists load 16
// floats for each multiply-add, which takes most of the time when they are not in the L1 cache.
#include "jit.h"

#include <algorithm>

#include "api.h"
#include "assembler.h"

#if defined(__x86_64__) && defined(__unix__)
#include <sys/mman.h>
#include <unistd.h>
#define RP_JIT 1
#endif

using namespace rankprune;

#if defined(RP_JIT)

namespace {

constexpr int64_t kMostFloats = int64_t(1) << 27;  // offsets of inputs in the code have 32 bits
constexpr int64_t kReach = 128 * 4;              // an offset of one byte reaches weights from -128 to 127
constexpr int64_t kNear = 128 * 64;              // ... and inputs from -128 to 127 vectors of 16 floats
constexpr int kInput = 31, kVectorMask = 30;     // registers beside the accumulators

int64_t chunks_of(const rp_taps& t) { return (t.outputs + t.width - 1) / t.width; }
int64_t channels_of(const rp_taps& t, int64_t chunk) { return std::min(t.width, t.outputs - chunk * t.width); }

// Inputs among the next taps that lie less than `bytes` after the first; three are enough.
int loads_within(const rp_taps& t, int64_t chunk, int64_t first, int64_t bytes) {
    int loads = 1;
    for (int64_t i = first + 1; i < t.starts[chunk + 1] && loads < 3; i++) {
        if ((int64_t(t.offsets[i]) - t.offsets[first]) * 4 >= bytes) break;
        loads += t.offsets[i] != t.offsets[i - 1];
    }
    return loads;
}

// Loads the masks that the taps of a chunk need: 1 to 7 into k1 to k7, and the eighth into a vector register.
void write_masks(Assembler& code, const rp_taps& t, int64_t chunk) {
    unsigned used = 0;
    for (int64_t i = t.starts[chunk]; t.masks && i < t.starts[chunk + 1]; i++) used |= 1u << t.masks[i];
    if (used >> kJitMasks & 1) {
        code.load_mask(1, int(2 * (kJitMasks - 1)));
        code.spread_mask(kVectorMask, 1);
    }
    for (int mask = 1; mask < kJitMasks; mask++)
        if (used >> mask & 1) code.load_mask(mask, 2 * (mask - 1));
}

void load_input(Assembler& code, int mask, int64_t offset) {
    if (mask == kJitMasks)
        code.and_load(kInput, kVectorMask, kRdi, offset);
    else if (mask)
        code.load_masked(kInput, mask, kRdi, offset);
    else
        code.load(kInput, kRdi, offset);
}

// Arguments (JitKernel): rdi in, rsi res, rdx out, rcx out_bytes, r8 res_bytes, r9 masks.
void write_chunk(Assembler& code, const rp_taps& t, int64_t chunk) {
    const int channels = int(channels_of(t, chunk));
    write_masks(code, t, chunk);
    code.move(kRax, t.bias + chunk * t.width);
    for (int i = 0; i < channels; i++) code.broadcast(i, kRax, 4 * i);
    code.move(kRax, reinterpret_cast<const char*>(t.values + t.starts[chunk]) + kReach);
    int64_t loaded = -1, input = 0, weight = -kReach;
    for (int64_t i = t.starts[chunk]; i < t.starts[chunk + 1]; i++, weight += 4) {
        if (t.offsets[i] != loaded) {
            loaded = t.offsets[i];
            const int64_t offset = (t.base[chunk] + loaded) * 4;
            if (offset - input >= kNear && loads_within(t, chunk, i, 2 * kNear) > 2) {
                code.add(kRdi, int32_t(offset + kNear - input));
                input = offset + kNear;
            }
            load_input(code, t.masks ? t.masks[i] : 0, offset - input);
        }
        if (weight == kReach) {
            code.add(kRax, int32_t(2 * kReach));
            weight = -kReach;
        }
        code.fma_broadcast(t.channels[i], kInput, kRax, weight);
    }
    if (t.relu) code.zero(kInput);
    for (int i = 0; i < channels; i++) {
        if (t.residual) {
            code.add_load(i, kRsi, 0);
            code.add(kRsi, kR8);
        }
        if (t.relu) code.max(i, kInput, i);  // NaN stays NaN
        code.store(i, kRdx, 0);
        code.add(kRdx, kRcx);
    }
    code.ret();
}

// Whether the lists can be turned into code that stays within the registers and within `low` .. `high`.
bool check_taps(const rp_taps& t, int64_t& low, int64_t& high) {
    if (t.width < 1 || t.width > kJitWidth || t.outputs < 1 || t.count < 0 || t.starts[0] != 0) return false;
    low = high = 0;
    const int64_t chunks = chunks_of(t);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t first = t.starts[chunk], end = t.starts[chunk + 1], base = t.base[chunk];
        if (end < first || end > t.count || base < -kMostFloats || base > kMostFloats) return false;
        for (int64_t i = first; i < end; i++) {
            if (t.channels[i] >= channels_of(t, chunk) || (t.masks && t.masks[i] > kJitMasks)) return false;
            low = std::min(low, base + t.offsets[i]);
            high = std::max(high, base + t.offsets[i]);
        }
    }
    return t.starts[chunks] == t.count && low >= -kMostFloats && high <= kMostFloats;
}

int64_t write_all(uint8_t* memory, const rp_taps& t, Jit* header) {
    const int64_t chunks = chunks_of(t);
    Assembler code(memory);
    code.skip(int64_t(sizeof(Jit) + sizeof(Jit::Chunk) * size_t(chunks)));
    for (int64_t chunk = 0; chunk <= chunks; chunk++) {
        code.align(64);
        if (header) header->chunk[chunk] = {code.size(), t.values + t.starts[chunk]};
        if (chunk < chunks) write_chunk(code, t, chunk);
    }
    return code.size();
}

}  // namespace

void* rp_jit_new(const rp_taps* t) {
    int64_t low, high;
    if (!check_taps(*t, low, high)) return nullptr;
    const int64_t page = sysconf(_SC_PAGESIZE), bytes = (write_all(nullptr, *t, nullptr) + page - 1) / page * page;
    void* memory = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Jit* header = static_cast<Jit*>(memory);
    *header = {kJitMark, bytes, t->outputs, t->width, low, high, t->residual, t->relu, t->masks != nullptr, {}};
    write_all(static_cast<uint8_t*>(memory), *t, header);
    if (!mprotect(memory, size_t(bytes), PROT_READ | PROT_EXEC)) return memory;  // never writable and executable at once
    munmap(memory, size_t(bytes));
    return nullptr;
}

int64_t rp_jit_bytes(const void* memory) { return static_cast<const Jit*>(memory)->bytes; }

void rp_jit_free(void* memory) { munmap(memory, size_t(rp_jit_bytes(memory))); }

#else

void* rp_jit_new(const rp_taps*) { return nullptr; }
int64_t rp_jit_bytes(const void*) { return 0; }
void rp_jit_free(void*) {}

#endif
