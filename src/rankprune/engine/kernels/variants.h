// Which instruction sets this CPU has.
#pragma once
#include "table.h"

namespace rankprune {
const Table* find_table(const char* name);  // null: unknown, or not for this CPU
}
