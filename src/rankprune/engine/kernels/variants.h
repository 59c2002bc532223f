// The instruction sets that this CPU has.
#pragma once
#include "table.h"

namespace rankprune {
const Table* find_table(const char* name);  // null if it is unknown or this CPU lacks it
}
