// All operators for one instruction set; compiled once per set, with RP_VARIANT and its flags.
// Nothing here may instantiate code that other files share, because the linker could keep this file's copy of it.
#include "conv.h"
#include "conv_jit.h"
#include "matrix.h"
#include "move.h"
#include "phases.h"
#include "planes.h"
#include "vec16.h"

namespace rankprune {
namespace {

#if defined(__AVX512F__)
typedef Vec16 Widest;
#else
typedef Vec Widest;
#endif

// Twelve independent chains of multiply-adds, more than any core keeps in flight.
static float peak_loop(int64_t turns) {
    Widest s[12], a = Widest::of(0.999f), b = Widest::of(1e-3f);
    RP_UNROLL for (int i = 0; i < 12; i++) s[i] = Widest::of(float(i));
    for (int64_t t = 0; t < turns; t++) {
        RP_UNROLL for (int i = 0; i < 12; i++) s[i] = s[i] * a + b;
    }
    RP_UNROLL for (int i = 1; i < 12; i++) s[0] = s[0] + s[i];
    float first[Widest::kFloats];
    s[0].storeu(first);
    return first[0];
}

static const char* check_operator(int64_t kind, const void* params, int64_t tasks, const Room& room) {
    Checker checker(room);
    switch (kind) {
#define RP_CHECK(Name, FIELDS, name)                                            \
    case k##Name: check_##name(checker, *static_cast<const Name*>(params), tasks); break;
        RP_OPERATORS(RP_CHECK)
#undef RP_CHECK
        default: return "an operator there is none of";
    }
    return checker.wrong;
}

}  // namespace

#define RP_JOIN_(a, b) a##b
#define RP_JOIN(a, b) RP_JOIN_(a, b)
#define RP_STRING_(a) #a
#define RP_STRING(a) RP_STRING_(a)

extern const Table RP_JOIN(table_, RP_VARIANT);
const Table RP_JOIN(table_, RP_VARIANT) = {
    RP_STRING(RP_VARIANT),
    Widest::kFloats,
#define RP_RUN(Name, FIELDS, name) run_##name,
    {RP_OPERATORS(RP_RUN)},
#undef RP_RUN
    check_operator,
    peak_loop,
};

}  // namespace rankprune
