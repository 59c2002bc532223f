// The operators of one instruction set.
#pragma once
#include "api.h"

namespace rankprune {

typedef void (*Task)(const void* params, int64_t task, float* arena, float* scratch);

struct Table {
    const char* name;
    int64_t lanes;  // of the widest vectors
    Task run[kKinds];
    float (*peak)(int64_t turns);  // 12 * 8 multiply-adds per turn
};

}  // namespace rankprune
