// The operators of one instruction set.
#pragma once
#include "api.h"

namespace rankprune {

struct Room {  // what an operator may access: floats of the arena and of a thread's scratch, and its own arrays
    int64_t arena, scratch;
    int64_t lanes;  // of the widest vectors
    const rp_array* arrays;
    int64_t count;
};

typedef void (*Task)(const void* params, int64_t task, float* arena, float* scratch);

struct Table {
    const char* name;
    int64_t lanes;  // of the widest vectors
    Task run[kKinds];
    // Why the parameters of an operator are invalid, or null.
    const char* (*check)(int64_t kind, const void* params, int64_t tasks, const Room& room);
    float (*peak)(int64_t turns);  // 12 * lanes multiply-adds per turn
};

}  // namespace rankprune
