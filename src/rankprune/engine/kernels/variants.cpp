#include "variants.h"

#include <cstring>

namespace rankprune {

extern const Table table_portable;
#if defined(__x86_64__)
extern const Table table_avx2, table_avx512;
#elif defined(__aarch64__)
extern const Table table_neon;
#endif

namespace {

const Table* usable(int index) {  // best first
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (avx512 && index-- == 0) return &table_avx512;
    if (avx2 && index-- == 0) return &table_avx2;
#elif defined(__aarch64__)
    if (index-- == 0) return &table_neon;
#endif
    return index == 0 ? &table_portable : nullptr;
}

}  // namespace

const Table* find_table(const char* name) {
    for (int i = 0; const Table* t = usable(i); i++)
        if (!std::strcmp(t->name, name)) return t;
    return nullptr;
}

}  // namespace rankprune

const char* rp_variant(int index) {
    const rankprune::Table* t = rankprune::usable(index);
    return t ? t->name : nullptr;
}
