// Shifted, phase-split copies of an image, and pooling through them.
#pragma once
#include "activation.h"

namespace rankprune {
namespace {

// NaN is larger than any number, on either side, as in torch.
static inline Vec largest(Vec a, Vec b) { return keep_nan(a, max(a, b)); }

// Copies columns x .. x+count-1 of one row to `to`; `fill` outside of the image.
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

// Rows of one block of 8 columns of the source; `fill` outside of the image and in lanes beyond its width.
struct Block {
    const float* rows;
    Vec inside;  // negative if the lane is in the image
    Vec fill;
    inline Vec at(int64_t offset) const { return select_negative(inside, Vec::load(rows + offset), fill); }
};

static const float kInside[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1};

static inline Block block(const Planes& p, const float* source, int64_t index) {
    int64_t lanes = index < 0 ? 0 : least(kLanes, most(0, p.width - index * kLanes));
    return {source + (lanes ? index * p.in.slab : 0), Vec::loadu(kInside + kLanes - lanes), Vec::of(float(p.fill))};
}

// Source and target of the rows of several channels.
struct Channels {
    const float* source;
    float* to;
    int64_t count, from_chan, to_chan;  // floats between channels
};

// Rows of 8 columns from column x on, shifted by S = x mod 8 against the blocks.
template <int S>
static void shifted(const Planes& p, Channels c, int64_t x, int64_t rows) {
    const int64_t step = p.stride_y * kLanes;
    for (int64_t i = 0; i < c.count; i++, c.source += c.from_chan, c.to += c.to_chan) {
        const Block a = block(p, c.source, x >> 3), b = S ? block(p, c.source, (x >> 3) + 1) : a;
        float *to = c.to, *end = to + kLanes * rows;
        for (int64_t offset = 0; to < end; to += kLanes, offset += step)
            (S ? across<S>(a.at(offset), b.at(offset)) : a.at(offset)).store(to);
    }
}

// Every second column.
template <int S>
static void halved(const Planes& p, Channels c, int64_t x, int64_t rows) {
    const int64_t step = p.stride_y * kLanes;
    for (int64_t i = 0; i < c.count; i++, c.source += c.from_chan, c.to += c.to_chan) {
        const Block a = block(p, c.source, x >> 3), b = block(p, c.source, (x >> 3) + 1);
        const Block third = S ? block(p, c.source, (x >> 3) + 2) : b;
        float *to = c.to, *end = to + kLanes * rows;
        for (int64_t offset = 0; to < end; to += kLanes, offset += step) {
            Vec u = a.at(offset), v = b.at(offset);
            if (S) {
                Vec w = third.at(offset);
                u = across<S>(u, v);
                v = across<S>(v, w);
            }
            even(u, v).store(to);
        }
    }
}

typedef void (*Rows)(const Planes&, Channels, int64_t, int64_t);
static const Rows kShifted[8] = {shifted<0>, shifted<1>, shifted<2>, shifted<3>,
                                 shifted<4>, shifted<5>, shifted<6>, shifted<7>};
static const Rows kHalved[8] = {halved<0>, halved<1>, halved<2>, halved<3>, halved<4>, halved<5>, halved<6>, halved<7>};

// Rows of an image in its original order, or with strides above 2.
static void plain_rows(const Planes& p, const float* source, int64_t x, int64_t rows, int64_t pitch, float* to) {
    // Loads may extend into neighbouring rows; at the first row, or far outside, they could leave the arena.
    int64_t slow = !p.plain || p.stride_x > 2 || x <= -p.width || x >= p.width ? rows : x < 0 ? 1 : 0;
    for (int64_t r = 0; r < slow; r++, source += p.stride_y * pitch, to += kLanes) {
        if (slow < rows && p.stride_x == 1 && x > -kLanes && p.width >= kLanes) {
            alignas(32) float row[2 * kLanes];
            Vec::of(float(p.fill)).store(row);
            Vec::loadu(source).storeu(row - x);
            Vec::load(row).store(to);
        } else {
            for (int i = 0; i < kLanes; i++) columns(p, source, x + i * p.stride_x, 1, to + i);
        }
    }
    if (slow == rows) return;
    alignas(32) float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = x + i * p.stride_x >= 0 && x + i * p.stride_x < p.width ? -1.f : 1.f;
    const Vec inside = Vec::load(lanes), fill = Vec::of(float(p.fill));
    const int64_t step = p.stride_y * pitch, stride = p.stride_x;
    const float* s = source + x;
    for (int64_t r = slow; r < rows; r++, s += step, to += kLanes) {
        Vec v = stride == 1 ? Vec::loadu(s) : even(Vec::loadu(s), Vec::loadu(s + kLanes));
        select_negative(inside, v, fill).store(to);
    }
}

static void fill_rows(const Planes& p, Channels c, int64_t first, int64_t last) {
    Vec fill = Vec::of(float(p.fill));
    for (int64_t i = 0; i < c.count && first < last; i++, c.to += c.to_chan)
        for (int64_t r = first; r < last; r++) fill.store(c.to + kLanes * r);
}

// One plane of each channel: rows of 8 columns of the source, stride_x apart, from x on; row r is the source's row
// y + r * stride_y.
static void plane(const Planes& p, Channels c, int64_t x, int64_t y) {
    int64_t top = y < 0 ? least((-y + p.stride_y - 1) / p.stride_y, p.rows) : 0;
    int64_t bottom = most(top, y >= p.height ? 0 : least((p.height - 1 - y) / p.stride_y + 1, p.rows));
    fill_rows(p, c, 0, top);
    fill_rows(p, c, bottom, p.rows);
    if (top == bottom) return;
    int64_t pitch = p.plain ? p.width : kLanes;
    c.source += (y + top * p.stride_y) * pitch;
    c.to += kLanes * top;
    if (!p.plain && p.stride_x <= 2) {
        (p.stride_x == 1 ? kShifted : kHalved)[x & 7](p, c, x, bottom - top);
        return;
    }
    for (int64_t i = 0; i < c.count; i++)
        plain_rows(p, c.source + i * c.from_chan, x, bottom - top, pitch, c.to + i * c.to_chan);
}

// All planes of some channels, plane by plane, so that a plane's parameters are computed once for all channels.
static void make_planes(const Planes& p, int64_t slab, Channels c) {
    for (int64_t phase = 0; phase < p.phases; phase++)
        for (int64_t tap = 0; tap < p.taps; tap++, c.to += p.rows * kLanes)
            if (phase * p.taps + tap == p.skip) {
                fill_rows(p, c, 0, -p.y_first[0]);
                fill_rows(p, c, p.height - p.y_first[0], p.rows);
            } else {
                plane(p, c, slab * kLanes * p.stride_x + p.x_first[tap], p.y_first[phase]);
            }
}

// The planes of one channel; the caller checks where they are written.
static void check_plane_set(Checker& check, const Planes& p, int64_t tasks) {
    check.counts(p.channels, p.height, p.width, p.slabs, p.rows, p.taps, p.phases, p.stride_x, p.stride_y);
    check.flag(p.plain);
    if (check.wrong || !check.array(p.x_first, p.taps) || !check.array(p.y_first, p.phases)) return;
    for (int64_t i = 0; i < p.taps; i++) check.need(between(-kFar, p.x_first[i], kFar), "a column that is too far away");
    for (int64_t i = 0; i < p.phases; i++) check.need(between(-kFar, p.y_first[i], kFar), "a row that is too far away");
    check.need(at_most(Wide(p.slabs) * kLanes * p.stride_x, kFar), "a stride that is too large");
    check.need(at_most(Wide(p.rows) * p.stride_y, kFar), "a stride that is too large");
    check.need(at_most(Wide(p.phases) * p.taps, kFar), "too many planes");
    check.tasks(Wide(p.slabs) * parts_of(p.channels, kPlaneChannels), tasks);
    if (p.plain)
        check.view({p.in.at, 0, p.in.chan}, 1, p.channels, Wide(p.height) * p.width, false);
    else
        check.view(p.in, parts_of(p.width, kLanes), p.channels, Wide(p.height) * kLanes);
    if (check.wrong || p.skip == -1) return;
    check.need(between(0, p.skip, p.phases * p.taps - 1), "a plane that is not there");
    check.need(between(-p.rows, p.y_first[0], 0), "a plane that begins within the image");
}

static void check_planes(Checker& check, const Planes& p, int64_t tasks) {
    check_plane_set(check, p, tasks);
    Wide floats = Wide(p.phases) * p.taps * p.rows * kLanes;
    if (!check.wrong) check.view({p.at, p.slab, p.chan}, p.slabs, p.channels, floats);
}

static void run_planes(const void* params, int64_t task, float* arena, float*) {
    const Planes& p = *static_cast<const Planes*>(params);
    int64_t parts = (p.channels + kPlaneChannels - 1) / kPlaneChannels;
    int64_t slab = task / parts, first = task % parts * kPlaneChannels;
    make_planes(p, slab, {arena + p.in.at + first * p.in.chan, arena + p.at + slab * p.slab + first * p.chan,
                          least(kPlaneChannels, p.channels - first), p.in.chan, p.chan});
}

// The image row that row k of a window reads for row 0 of the result; negative above the image.
static inline int64_t window_row(const Pool& pool, int64_t k) {
    const Planes& p = pool.planes;
    int64_t at = pool.offsets[k * p.taps];  // in the planes [phase][tap][row]
    return p.y_first[at / (p.rows * p.taps)] + at % p.rows * p.stride_y;
}

constexpr int64_t kTallestWindow = 64;  // maximum height of a window that is pooled this way

// The maximum of each column of a block over the K rows of a window: rows first .. last - 1 of the result, whose windows
// are within the image.
template <int K>
static void column_maximum(const Block& b, const int64_t* shift, int64_t step, int64_t first, int64_t last, float* to,
                           int64_t apart) {
    for (int64_t r = first; r < last; r++) {
        Vec v = Vec::load(b.rows + (shift[0] + r * step) * kLanes);
        RP_UNROLL for (int k = 1; k < K; k++) v = largest(v, Vec::load(b.rows + (shift[k] + r * step) * kLanes));
        select_negative(b.inside, v, b.fill).store(to + r * apart);
    }
}

// Where a block of 8 columns of the result goes.
struct Row {
    float* to;
    int64_t apart, lanes;  // floats between rows, and how many of the 8 are within the image
    void store(Vec v, int64_t row) const { store_some(v, to + row * apart, lanes); }
};

// Maximum of a window: first along columns, into the scratch [row][block][8], for all blocks of the image that a row of
// the result needs; then along each row, by unaligned loads. False if the scratch has no room for these blocks.
static bool pool_maximum(const Pool& pool, const float* source, int64_t slab, const Row& out, float* scratch) {
    const Planes& p = pool.planes;
    const int64_t rows = pool.rows, taps = p.taps, step = p.stride_y, height = p.height;
    const int64_t window = pool.count / taps;  // its height
    const int64_t x = slab * kLanes * p.stride_x, first = (x + p.x_first[0]) >> 3;
    const int64_t last = (x + p.x_first[taps - 1] + kLanes * p.stride_x - 1) >> 3;
    const int64_t blocks = last - first + 1, apart = blocks * kLanes;
    if (pool.average || p.plain || p.stride_x > 2 || window < 1 || window > kTallestWindow ||
        blocks > taps * p.phases * p.rows / rows)
        return false;
    int64_t shift[kTallestWindow];
    for (int64_t k = 0; k < window; k++) shift[k] = window_row(pool, k);
    // Rows of the result whose windows are within the image.
    int64_t top = 0, bottom = rows;
    while (top < rows && shift[0] + top * step < 0) top++;
    while (bottom > top && shift[window - 1] + (bottom - 1) * step >= height) bottom--;
    if (window != 2 && window != 3) top = bottom = rows;
    for (int64_t j = 0; j < blocks; j++) {
        const Block b = block(p, source, first + j);
        float* to = scratch + j * kLanes;
        for (int64_t r = top ? 0 : bottom; r < rows; r = r + 1 == top ? bottom : r + 1) {
            Vec v = b.fill;
            for (int64_t k = 0; k < window; k++) {
                int64_t y = shift[k] + r * step;
                if (y >= 0 && y < height) v = largest(v, b.at(y * kLanes));
            }
            v.store(to + r * apart);
        }
        if (window == 2) column_maximum<2>(b, shift, step, top, bottom, to, apart);
        if (window == 3) column_maximum<3>(b, shift, step, top, bottom, to, apart);
    }
    const bool single = p.stride_x == 1;
    const int64_t* x_first = p.x_first;
    const Vec fill = Vec::of(float(p.fill));
    for (int64_t r = 0; r < rows; r++) {
        const float* s = scratch + r * apart - first * kLanes + x;
        Vec v = fill;
        for (int64_t t = 0; t < taps; t++) {
            const float* from = s + x_first[t];
            v = largest(v, single ? Vec::loadu(from) : even(Vec::loadu(from), Vec::loadu(from + kLanes)));
        }
        out.store(v, r);
    }
    return true;
}

static void check_pool(Checker& check, const Pool& p, int64_t tasks) {
    check_plane_set(check, p.planes, tasks);
    check.counts(p.rows, p.count);
    if (check.wrong) return;
    Wide rows = Wide(p.planes.phases) * p.planes.taps * p.planes.rows;
    check.scratch(rows * kLanes);
    check.need(between(0, p.columns, kFar) && (!p.columns || parts_of(p.columns, kLanes) == p.planes.slabs),
               "columns that are not those of its slabs");
    if (p.columns)
        check.view({p.out.at, 0, p.out.chan}, 1, p.planes.channels, Wide(p.rows) * p.columns, false);
    else
        check.view(p.out, p.planes.slabs, p.planes.channels, Wide(p.rows) * kLanes);
    if (check.wrong || !check.array(p.offsets, p.count)) return;
    for (int64_t i = 0; i < p.count; i++)
        check.need(p.offsets[i] >= 0 && at_most(Wide(p.offsets[i]) + p.rows, rows.value), "a tap outside of the planes");
    // The maximum takes the first and last tap along x and y for the bounds of its window.
    bool ascend = true;
    for (int64_t i = 1; i < p.planes.taps; i++) ascend = ascend && p.planes.x_first[i - 1] < p.planes.x_first[i];
    for (int64_t k = 1; !check.wrong && k < p.count / p.planes.taps; k++)
        ascend = ascend && window_row(p, k - 1) < window_row(p, k);
    check.need(ascend, "taps that are not in order");
    if (p.average) check.array(p.scale, Wide(p.planes.slabs) * p.rows * kLanes);
}

static void run_pool(const void* params, int64_t task, float* arena, float* scratch) {
    const Pool& p = *static_cast<const Pool*>(params);
    int64_t parts = (p.planes.channels + kPlaneChannels - 1) / kPlaneChannels;
    int64_t slab = task / parts, first = task % parts * kPlaneChannels;
    for (int64_t c = first; c < least(first + kPlaneChannels, p.planes.channels); c++) {
        const float* source = arena + p.planes.in.at + c * p.planes.in.chan;
        const Row out = p.columns ? Row{arena + p.out.at + slab * kLanes + c * p.out.chan, p.columns,
                                        least(kLanes, p.columns - slab * kLanes)}
                                  : Row{arena + p.out.at + slab * p.out.slab + c * p.out.chan, kLanes, kLanes};
        if (pool_maximum(p, source, slab, out, scratch)) continue;
        make_planes(p.planes, slab, {source, scratch, 1, 0, 0});
        for (int64_t r = 0; r < p.rows; r++) {
            Vec v = Vec::load(scratch + (p.offsets[0] + r) * kLanes);
            for (int64_t i = 1; i < p.count; i++) {
                Vec x = Vec::load(scratch + (p.offsets[i] + r) * kLanes);
                v = p.average ? v + x : largest(v, x);
            }
            if (p.average) v = v * Vec::loadu(p.scale + (slab * p.rows + r) * kLanes);
            out.store(v, r);
        }
    }
}

static void check_window(Checker& check, const Window& w, int64_t tasks) {
    check.counts(w.channels, w.height, w.width, w.out_height, w.out_width, w.kernel_y, w.kernel_x);
    check.counts(w.stride_y, w.stride_x, w.dilation_y, w.dilation_x);
    check.limited(0, "a padding that is not a count", w.pad_y, w.pad_x);
    if (check.wrong) return;
    check.need(at_most(Wide(w.out_height) * w.stride_y + Wide(w.kernel_y) * w.dilation_y, kFar) &&
               at_most(Wide(w.out_width) * w.stride_x + Wide(w.kernel_x) * w.dilation_x, kFar),
               "a window that is too large");
    check.tasks(Wide(w.out_height) * w.channels, tasks);
    check.view(w.in, w.height, w.channels, Wide(w.width) * kLanes);
    check.view(w.out, w.out_height, w.channels, Wide(w.out_width) * kLanes);
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
            // Windows that extend beyond the padding (ceil mode) count only the part within it.
            int64_t high = least(y * w.stride_y - w.pad_y + w.kernel_y, w.height + w.pad_y) - (y * w.stride_y - w.pad_y);
            int64_t wide = least(x * w.stride_x - w.pad_x + w.kernel_x, w.width + w.pad_x) - (x * w.stride_x - w.pad_x);
            v = v * Vec::of(1.f / float(w.count_pad ? high * wide : count));
        }
        v.store(arena + w.out.at + y * w.out.slab + c * w.out.chan + x * kLanes);
    }
}

}  // namespace
}  // namespace rankprune
