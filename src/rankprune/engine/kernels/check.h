// Checks once, before it first runs, that an operator stays within the memory it was given.
#pragma once
#include "api.h"

namespace rankprune {

struct Room {  // what an operator may access: floats of the arena and of a thread's scratch, and its own arrays
    int64_t arena, scratch;
    int64_t lanes;  // of the widest vectors
    const rp_array* arrays;
    int64_t count;
};

// Returns why the parameters of an operator are invalid, or null.
const char* check(int64_t kind, const void* params, int64_t tasks, const Room& room);

}  // namespace rankprune
