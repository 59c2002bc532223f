// Whether an operator stays within what it was given, looked at once, before it is first run.
#pragma once
#include "api.h"

namespace rankprune {

struct Room {  // what an operator may touch: floats of the arena and of a thread's scratch, and the arrays given with it
    int64_t arena, scratch;
    int64_t lanes;  // of the widest vectors there are
    const rp_array* arrays;
    int64_t count;
};

// What is wrong with the parameters of an operator, or null.
const char* check(int64_t kind, const void* params, int64_t tasks, const Room& room);

}  // namespace rankprune
