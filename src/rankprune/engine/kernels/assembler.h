// Writes the few AVX-512 instructions that generated kernels consist of. An encoding is described in Intel's manual,
// volume 2, section 2.7 ("EVEX"); each function here is one form of an instruction.
#pragma once
#include <cstdint>
#include <cstring>

namespace rankprune {

enum Register : int { kRax = 0, kRcx = 1, kRdx = 2, kRsi = 6, kRdi = 7, kR8 = 8, kR9 = 9 };

class Assembler {
  public:
    // Without memory, instructions are only counted.
    explicit Assembler(uint8_t* code) : code_(code) {}

    int64_t size() const { return size_; }
    void skip(int64_t bytes) { size_ += bytes; }
    void align(int64_t to) {
        while (size_ % to) byte(0xcc);
    }

    void move(Register to, const void* address) {  // mov to, imm64
        byte(0x48), byte(0xb8 | to), number(reinterpret_cast<uint64_t>(address));
    }
    void add(Register to, int32_t value) { byte(0x48), byte(0x81), byte(0xc0 | to), number(value); }
    void add(Register to, Register other) {
        byte(0x48 | (other >> 3) << 2 | to >> 3), byte(0x01), byte(0xc0 | (other & 7) << 3 | (to & 7));
    }
    void ret() { byte(0xc3); }

    // vbroadcastss to, [base + offset]
    void broadcast(int to, Register base, int64_t offset) { memory(kMap0F38, k66, 0x18, to, 0, base, offset, 4, false); }
    // vmovups to, [base + offset]
    void load(int to, Register base, int64_t offset) { memory(kMap0F, kNoPrefix, 0x10, to, 0, base, offset, 64, false); }
    // vmovups to{mask}{z}, [base + offset]: 0 where a bit of the mask register is not set
    void load_masked(int to, int mask, Register base, int64_t offset) {
        memory(kMap0F, kNoPrefix, 0x10, to, 0, base, offset, 64, false, mask);
    }
    // vpandd to, x, [base + offset]
    void and_load(int to, int x, Register base, int64_t offset) {
        memory(kMap0F, k66, 0xdb, to, x, base, offset, 64, false);
    }
    // kmovw mask, [r9 + offset]
    void load_mask(int mask, int offset) {
        byte(0xc4), byte(0xc1), byte(0x78), byte(0x90), byte(0x40 | mask << 3 | (kR9 & 7)), byte(offset);
    }
    // vpmovm2d to, mask: all bits of a lane
    void spread_mask(int to, int mask) { registers(kMap0F38, kF3, 0x38, to, 0, mask); }
    // vmovups [base + offset], from
    void store(int from, Register base, int64_t offset) {
        memory(kMap0F, kNoPrefix, 0x11, from, 0, base, offset, 64, false);
    }
    // vaddps to, to, [base + offset]
    void add_load(int to, Register base, int64_t offset) {
        memory(kMap0F, kNoPrefix, 0x58, to, to, base, offset, 64, false);
    }
    // vfmadd231ps to, x, [base + offset]{1to16}
    void fma_broadcast(int to, int x, Register base, int64_t offset) {
        memory(kMap0F38, k66, 0xb8, to, x, base, offset, 4, true);
    }
    // vmaxps to, a, b; b if either is NaN
    void max(int to, int a, int b) { registers(kMap0F, kNoPrefix, 0x5f, to, a, b); }
    // vpxord to, to, to
    void zero(int to) { registers(kMap0F, k66, 0xef, to, to, to); }

  private:
    enum { kMap0F = 1, kMap0F38 = 2, kNoPrefix = 0, k66 = 1, kF3 = 2 };

    void byte(int value) {
        if (code_) code_[size_] = uint8_t(value);
        size_++;
    }
    template <class T>
    void number(T value) {
        if (code_) std::memcpy(code_ + size_, &value, sizeof value);
        size_ += sizeof value;
    }
    // The prefix of an instruction with 512-bit vectors; x and b extend the last operand. EVEX inverts these bits.
    // With a mask register (1 to 7), lanes whose bit is not set become 0.
    void evex(int map, int prefix, int reg, int second, int x, int b, bool broadcast, int mask) {
        byte(0x62);
        byte((~reg >> 3 & 1) << 7 | (~x & 1) << 6 | (~b & 1) << 5 | (~reg >> 4 & 1) << 4 | map);
        byte((~second & 15) << 3 | 4 | prefix);
        byte((mask > 0) << 7 | 2 << 5 | broadcast << 4 | (~second >> 4 & 1) << 3 | mask);
    }
    void memory(int map, int prefix, int opcode, int reg, int second, Register base, int64_t offset, int unit,
                bool broadcast, int mask = 0) {
        evex(map, prefix, reg, second, 0, base >> 3, broadcast, mask);
        byte(opcode);
        // An offset of one byte counts in units of the operand's size.
        if (offset % unit == 0 && -128 <= offset / unit && offset / unit <= 127) {
            byte(0x40 | (reg & 7) << 3 | (base & 7));
            byte(int(offset / unit));
        } else {
            byte(0x80 | (reg & 7) << 3 | (base & 7));
            number(int32_t(offset));
        }
    }
    void registers(int map, int prefix, int opcode, int reg, int second, int last) {
        evex(map, prefix, reg, second, last >> 4, last >> 3, false, 0);
        byte(opcode), byte(0xc0 | (reg & 7) << 3 | (last & 7));
    }

    uint8_t* code_;
    int64_t size_ = 0;
};

}  // namespace rankprune
