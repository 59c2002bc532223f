// Splits an image by the phases of a stride: image (i, j) has the pixels (i + stride_y * y, j + stride_x * x).
#pragma once
#include "checker.h"
#include "vec.h"

namespace rankprune {
namespace {

static void check_phases(Checker& check, const Phases& p, int64_t tasks) {
    check.counts(p.channels, p.height, p.width, p.stride_y, p.stride_x, p.rows, p.columns, p.count);
    check.flag(p.plain);
    if (check.wrong || !check.array(p.first, Wide(2) * p.count)) return;
    bool within = true;  // every pixel of a result lies in the image, but for a last row or column that may be missing
    for (int64_t i = 0; i < p.count; i++)
        within = within && between(0, p.first[2 * i], p.stride_y - 1) && between(0, p.first[2 * i + 1], p.stride_x - 1);
    check.need(within, "a phase that the stride does not have");
    check.need(p.rows == parts_of(p.height, p.stride_y) && p.columns == parts_of(p.width, p.stride_x),
               "extents that are not those of the image by its stride");
    check.tasks(parts_of(p.channels, kPlaneChannels), tasks);
    if (p.plain)
        check.view({p.in.at, 0, p.in.chan}, 1, p.channels, Wide(p.height) * p.width, false);
    else
        check.view(p.in, parts_of(p.width, kLanes), p.channels, Wide(p.height) * kLanes);
    check.view(p.out, p.count, p.channels, Wide(p.rows) * p.columns, false);
}

// Columns x .. x + 7 of a row, of which `lanes` are read; those beyond the image may be anything.
static inline Vec columns_of(const Phases& p, const float* channel, int64_t y, int64_t x) {
    if (p.plain) return load_some(channel + y * p.width + x, least(kLanes, p.width - x));
    return Vec::load(channel + x / kLanes * p.in.slab + y * kLanes);
}

static void split(const Phases& p, const float* source, int64_t first_y, int64_t first_x, float* to) {
    for (int64_t y = first_y; y < p.height; y += p.stride_y, to += p.columns)
        for (int64_t j = 0; j < p.columns; j += kLanes) {
            const int64_t lanes = least(kLanes, p.columns - j), x = j * p.stride_x;
            if (p.stride_x > 2) {
                for (int64_t i = 0; i < lanes; i++) {
                    const int64_t column = x + i * p.stride_x + first_x;
                    if (column >= p.width) continue;
                    to[j + i] = p.plain ? source[y * p.width + column]
                                        : source[column / kLanes * p.in.slab + y * kLanes + column % kLanes];
                }
                continue;
            }
            Vec v = columns_of(p, source, y, x);
            if (p.stride_x == 2) {
                const Vec next = x + kLanes < p.width ? columns_of(p, source, y, x + kLanes) : v;
                v = first_x ? odd(v, next) : even(v, next);
            }
            store_some(v, to + j, lanes);
        }
}

static void run_phases(const void* params, int64_t task, float* arena, float*) {
    const Phases& p = *static_cast<const Phases*>(params);
    const int64_t last = least((task + 1) * kPlaneChannels, p.channels);
    for (int64_t c = task * kPlaneChannels; c < last; c++)
        for (int64_t i = 0; i < p.count; i++)
            split(p, arena + p.in.at + c * p.in.chan, p.first[2 * i], p.first[2 * i + 1],
                  arena + p.out.at + c * p.out.chan + i * p.out.slab);
}

}  // namespace
}  // namespace rankprune
