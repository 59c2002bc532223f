// Shifted, phase-split copies of an image, and pooling through them.
#pragma once
#include "activation.h"

namespace rankprune {
namespace {

// NaN is the largest of all, whichever side it stands on, as it is in torch.
static inline Vec largest(Vec a, Vec b) { return keep_nan(a, max(a, b)); }

// Columns x .. x+count-1 of one row into `to`; `fill` outside the image.
static inline void columns(const Planes& p, const float* source, int64_t x, int64_t count, float* to) {
    int64_t i = 0;
    for (; i < count && x + i < 0; i++) to[i] = float(p.fill);
    int64_t end = least(count, p.width - x);
    if (p.plain) {
        for (; i < end; i++) to[i] = source[x + i];
    } else {
        while (i < end) {
            int64_t column = x + i, lane = column & 7, some = least(end - i, kLanes - lane);
            const float* s = source + (column >> 3) * p.in.slab + lane;
            for (int64_t j = 0; j < some; j++) to[i + j] = s[j];
            i += some;
        }
    }
    for (; i < count; i++) to[i] = float(p.fill);
}

// Rows of one block of 8 columns of the source; outside the image, and in lanes beyond its width, `fill`.
struct Block {
    const float* rows;
    Vec inside;  // negative: the lane is in the image
    Vec fill;
    inline Vec at(int64_t offset) const { return select_negative(inside, Vec::load(rows + offset), fill); }
};

static inline Block block(const Planes& p, const float* source, int64_t index) {
    alignas(32) float inside[kLanes];
    bool there = index >= 0 && index * kLanes < p.width;
    for (int i = 0; i < kLanes; i++) inside[i] = there && index * kLanes + i < p.width ? -1.f : 1.f;
    return {source + (there ? index * p.in.slab : 0), Vec::load(inside), Vec::of(float(p.fill))};
}

// Rows of 8 columns from column x on, shifted by S = x mod 8 against the blocks.
template <int S>
static void shifted(const Planes& p, const float* source, int64_t x, int64_t rows, float* to) {
    const Block a = block(p, source, x >> 3), b = S ? block(p, source, (x >> 3) + 1) : a;
    for (int64_t r = 0; r < rows; r++) {
        int64_t offset = r * p.stride_y * kLanes;
        (S ? across<S>(a.at(offset), b.at(offset)) : a.at(offset)).store(to + kLanes * r);
    }
}

// Every second column.
template <int S>
static void halved(const Planes& p, const float* source, int64_t x, int64_t rows, float* to) {
    const Block a = block(p, source, x >> 3), b = block(p, source, (x >> 3) + 1);
    const Block c = S ? block(p, source, (x >> 3) + 2) : b;
    for (int64_t r = 0; r < rows; r++) {
        int64_t offset = r * p.stride_y * kLanes;
        Vec u = a.at(offset), v = b.at(offset);
        if (S) {
            Vec w = c.at(offset);
            u = across<S>(u, v);
            v = across<S>(v, w);
        }
        even(u, v).store(to + kLanes * r);
    }
}

typedef void (*Rows)(const Planes&, const float*, int64_t, int64_t, float*);
static const Rows kShifted[8] = {shifted<0>, shifted<1>, shifted<2>, shifted<3>,
                                 shifted<4>, shifted<5>, shifted<6>, shifted<7>};
static const Rows kHalved[8] = {halved<0>, halved<1>, halved<2>, halved<3>, halved<4>, halved<5>, halved<6>, halved<7>};

// One plane: rows of 8 columns of the source, stride_x apart, from x on; row r is the source's row y + r * stride_y.
static void plane(const Planes& p, const float* source, int64_t x, int64_t y, float* to) {
    int64_t top = y < 0 ? least((-y + p.stride_y - 1) / p.stride_y, p.rows) : 0;
    int64_t bottom = most(top, y >= p.height ? 0 : least((p.height - 1 - y) / p.stride_y + 1, p.rows));
    for (int64_t r = 0; r < top; r++) Vec::of(float(p.fill)).store(to + kLanes * r);
    for (int64_t r = bottom; r < p.rows; r++) Vec::of(float(p.fill)).store(to + kLanes * r);
    if (top == bottom) return;
    int64_t pitch = p.plain ? p.width : kLanes;
    const float* first = source + (y + top * p.stride_y) * pitch;
    float* target = to + kLanes * top;
    if (!p.plain && p.stride_x <= 2) {
        (p.stride_x == 1 ? kShifted : kHalved)[x & 7](p, first, x, bottom - top, target);
        return;
    }
    bool inside = p.plain && p.stride_x <= 2 && x >= 0 && x + kLanes * p.stride_x <= p.width;
    for (int64_t r = 0; r < bottom - top; r++) {
        const float* s = first + r * p.stride_y * pitch;
        if (inside && p.stride_x == 1)
            Vec::loadu(s + x).store(target + kLanes * r);
        else if (inside)
            even(Vec::loadu(s + x), Vec::loadu(s + x + kLanes)).store(target + kLanes * r);
        else
            for (int i = 0; i < kLanes; i++) columns(p, s, x + i * p.stride_x, 1, target + kLanes * r + i);
    }
}

static void channel_planes(const Planes& p, int64_t slab, int64_t channel, const float* arena, float* to) {
    const float* source = arena + p.in.at + channel * p.in.chan;
    for (int64_t phase = 0; phase < p.phases; phase++)
        for (int64_t tap = 0; tap < p.taps; tap++, to += p.rows * kLanes)
            if (phase * p.taps + tap == p.skip) {
                for (int64_t r = 0; r < -p.y_first[0]; r++) Vec::of(float(p.fill)).store(to + kLanes * r);
                for (int64_t r = p.height - p.y_first[0]; r < p.rows; r++)
                    Vec::of(float(p.fill)).store(to + kLanes * r);
            } else {
                plane(p, source, slab * kLanes * p.stride_x + p.x_first[tap], p.y_first[phase], to);
            }
}

static void run_planes(const void* params, int64_t task, float* arena, float*) {
    const Planes& p = *static_cast<const Planes*>(params);
    int64_t parts = (p.channels + kPlaneChannels - 1) / kPlaneChannels;
    int64_t slab = task / parts, first = task % parts * kPlaneChannels;
    for (int64_t c = first; c < least(first + kPlaneChannels, p.channels); c++)
        channel_planes(p, slab, c, arena, arena + p.at + slab * p.slab + c * p.chan);
}

static void run_pool(const void* params, int64_t task, float* arena, float* scratch) {
    const Pool& p = *static_cast<const Pool*>(params);
    int64_t parts = (p.planes.channels + kPlaneChannels - 1) / kPlaneChannels;
    int64_t slab = task / parts, first = task % parts * kPlaneChannels;
    for (int64_t c = first; c < least(first + kPlaneChannels, p.planes.channels); c++) {
        channel_planes(p.planes, slab, c, arena, scratch);
        float* out = arena + p.out.at + slab * p.out.slab + c * p.out.chan;
        for (int64_t r = 0; r < p.rows; r++) {
            Vec v = Vec::load(scratch + (p.offsets[0] + r) * kLanes);
            for (int64_t i = 1; i < p.count; i++) {
                Vec x = Vec::load(scratch + (p.offsets[i] + r) * kLanes);
                v = p.average ? v + x : largest(v, x);
            }
            if (p.average) v = v * Vec::loadu(p.scale + (slab * p.rows + r) * kLanes);
            v.store(out + r * kLanes);
        }
    }
}

static void run_window(const void* params, int64_t task, float* arena, float*) {
    const Window& w = *static_cast<const Window*>(params);
    int64_t y = task / w.channels, c = task % w.channels;
    for (int64_t x = 0; x < w.out_width; x++) {
        Vec v = w.average ? zero() : Vec::of(-__builtin_inff());
        int64_t count = 0;
        for (int64_t ky = 0; ky < w.kernel_y; ky++) {
            int64_t iy = y * w.stride_y - w.pad_y + ky * w.dilation_y;
            if (iy < 0 || iy >= w.height) continue;
            for (int64_t kx = 0; kx < w.kernel_x; kx++) {
                int64_t ix = x * w.stride_x - w.pad_x + kx * w.dilation_x;
                if (ix < 0 || ix >= w.width) continue;
                Vec s = Vec::load(arena + w.in.at + iy * w.in.slab + c * w.in.chan + ix * kLanes);
                v = w.average ? v + s : largest(v, s);
                count++;
            }
        }
        if (w.average) {
            // Windows that hang over a padded edge (ceil mode) count only what the padding covers.
            int64_t high = least(y * w.stride_y - w.pad_y + w.kernel_y, w.height + w.pad_y) - (y * w.stride_y - w.pad_y);
            int64_t wide = least(x * w.stride_x - w.pad_x + w.kernel_x, w.width + w.pad_x) - (x * w.stride_x - w.pad_x);
            v = v * Vec::of(1.f / float(w.count_pad ? high * wide : count));
        }
        v.store(arena + w.out.at + y * w.out.slab + c * w.out.chan + x * kLanes);
    }
}

}  // namespace
}  // namespace rankprune
