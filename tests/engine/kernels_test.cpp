// A small program of its own, for the sanitizers: random convolutions in every kernel shape, on several threads and by
// several callers at once, against a plain loop.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "api.h"

using namespace rankprune;

static std::mt19937 random_bits(7);

static float uniform() { return std::uniform_real_distribution<float>(-1, 1)(random_bits); }
static int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_bits); }

// One 1x1 convolution [channel][row][8] -> [channel][row][8] with a residual and ReLU; true: as the plain loop says.
static bool one(const char* variant, int64_t width, int64_t height, int64_t lanes, bool at_once) {
    int64_t slabs = between(1, 3), rows = between(1, 17), ins = between(1, 9), chunks = between(1, 5), outs = chunks * width;
    int64_t blocks = between(1, 3), groups = between(1, chunks);
    height = std::min(height, lanes == 16 ? (rows + 1) / 2 * 2 : rows);
    std::vector<float> weight(size_t(outs * ins)), bias(static_cast<size_t>(outs));
    for (float& w : weight) w = between(0, 2) ? 0.f : uniform();
    for (float& b : bias) b = uniform();
    std::vector<float> values;
    std::vector<uint16_t> offsets;
    std::vector<int64_t> starts{0}, base, splits;
    int64_t each = (ins + blocks - 1) / blocks;
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t first = std::min(block * each, ins);
            for (int64_t i = first; i < std::min(ins, first + each); i++) {
                bool any = false;
                for (int64_t w = 0; w < width; w++) any |= weight[size_t((chunk * width + w) * ins + i)] != 0;
                if (!any) continue;
                offsets.push_back(uint16_t((i - first) * rows));
                for (int64_t w = 0; w < width; w++) values.push_back(weight[size_t((chunk * width + w) * ins + i)]);
            }
            starts.push_back(int64_t(offsets.size()));
            base.push_back(first * rows);
        }
    for (int64_t g = 0; g <= groups; g++) splits.push_back(g * chunks / groups);
    int64_t in_size = slabs * ins * rows * kLanes, out_size = slabs * outs * rows * kLanes;
    Conv c{};
    c.in = {0, ins * rows * kLanes, rows * kLanes};
    c.res = {in_size, outs * rows * kLanes, rows * kLanes};
    c.out = {in_size + out_size, outs * rows * kLanes, rows * kLanes};
    c.step = kLanes;
    c.slabs = slabs; c.rows = rows; c.channels = outs; c.activation.kind = kRelu;
    c.width = width; c.height = height; c.lanes = lanes; c.groups = groups; c.blocks = blocks;
    c.values = values.data(); c.bias = bias.data(); c.offsets = offsets.data();
    c.starts = starts.data(); c.base = base.data(); c.splits = splits.data();
    rp_program* p = rp_new(variant, at_once ? 1 : between(1, 3), in_size + 2 * out_size, outs * height * kLanes);
    int64_t parts = (rows + height - 1) / height;
    auto given = [](const auto& v) { return rp_array{v.data(), int64_t(v.size() * sizeof(v[0]))}; };
    rp_array arrays[] = {given(values), given(bias), given(offsets), given(starts), given(base), given(splits)};
    if (!p || rp_add(p, kConv, &c, slabs * parts * groups, arrays, 6)) return false;
    constexpr int64_t kGroups = 3;
    std::vector<float> x(size_t(kGroups * in_size)), r(size_t(kGroups * out_size));
    for (float& v : x) v = uniform();
    for (float& v : r) v = uniform();
    bool good = true;
    auto caller = [&] {
        std::vector<float> y(size_t(kGroups * out_size), NAN);
        rp_copy in[2] = {{x.data(), 0, in_size}, {r.data(), in_size, out_size}}, out[1] = {{y.data(), in_size + out_size, out_size}};
        int64_t ran = at_once ? kGroups : 1;
        bool mine = !(at_once ? rp_run_groups(p, in, 2, out, 1, kGroups, 2) : rp_run(p, in, 2, out, 1, nullptr));
        for (int64_t g = 0; g < ran; g++)
            for (int64_t s = 0; s < slabs; s++)
                for (int64_t o = 0; o < outs; o++)
                    for (int64_t k = 0; k < rows * kLanes; k++) {
                        double sum = bias[size_t(o)] + r[size_t(g * out_size + (s * outs + o) * rows * kLanes + k)];
                        for (int64_t i = 0; i < ins; i++)
                            sum += double(weight[size_t(o * ins + i)]) * x[size_t(g * in_size + (s * ins + i) * rows * kLanes + k)];
                        float got = y[size_t(g * out_size + (s * outs + o) * rows * kLanes + k)];
                        mine = mine && std::fabs(got - std::max(sum, 0.0)) < 1e-4;
                    }
        return mine;
    };
    bool other = true;
    std::thread second([&] { other = caller(); });
    good = caller();
    second.join();
    rp_free(p);
    return good && other;
}

int main() {
    for (int v = 0; const char* variant = rp_variant(v); v++)
        for (int64_t lanes = 8; lanes <= rp_lanes(variant); lanes += 8)
            for (int64_t width : {1, 2, 4}) {
                bool wide = lanes == 16;
                int64_t tallest = width == 1 ? (wide ? 16 : 14) : width == 4 ? (wide ? 12 : 3) : wide ? 0 : 6;
                for (int64_t height = lanes / 8; height <= tallest; height += lanes / 8)
                    for (bool at_once : {false, true})
                        for (int turn = 0; turn < 3; turn++)
                            if (!one(variant, width, height, lanes, at_once)) {
                                std::printf("%s %ldx%ld of %ld lanes is wrong\n", variant, long(width), long(height), long(lanes));
                                return 1;
                            }
            }
    std::puts("all kernels agree");
    return 0;
}
