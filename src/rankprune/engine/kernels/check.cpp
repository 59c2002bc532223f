// All memory that an operator accesses follows from its parameters: the first and last offsets are computed here in
// 64-bit integers that detect overflow, and compared with the arena, the scratch and the arrays.
#include "check.h"

#include <initializer_list>

namespace rankprune {
namespace {

constexpr int64_t kFar = int64_t(1) << 40;  // limit of extents, shifts and strides

struct Wide {  // an integer that records overflow
    int64_t value;
    bool over = false;
    Wide(int64_t v) : value(v) {}
};
Wide operator+(Wide a, Wide b) {
    Wide c(0);
    c.over = __builtin_add_overflow(a.value, b.value, &c.value) || a.over || b.over;
    return c;
}
Wide operator*(Wide a, Wide b) {
    Wide c(0);
    c.over = __builtin_mul_overflow(a.value, b.value, &c.value) || a.over || b.over;
    return c;
}
bool at_most(Wide a, int64_t limit) { return !a.over && a.value <= limit; }
bool equal(Wide a, int64_t b) { return !a.over && a.value == b; }
bool between(int64_t low, int64_t value, int64_t high) { return low <= value && value <= high; }
int64_t parts(int64_t count, int64_t size) { return count / size + (count % size != 0); }

struct Checker {
    const Room& room;
    const char* wrong = nullptr;

    explicit Checker(const Room& r) : room(r) {}

    void need(bool sound, const char* what) {
        if (!sound && !wrong) wrong = what;
    }

    // Extents must be between 1 and kFar.
    void counts(std::initializer_list<int64_t> each) {
        for (int64_t n : each) need(between(1, n, kFar), "an extent that is not a count");
    }

    void tasks(Wide expected, int64_t given) {
        need(equal(expected, given), "another number of tasks than its extents give");
    }

    // Floats first .. first + size - 1 of the arena; `aligned` if they are read as rows of 8.
    void span(int64_t first, Wide size, bool aligned) {
        need(first >= 0 && at_most(Wide(first) + size, room.arena), "a value beyond the end of the arena");
        need(!aligned || first % kLanes == 0, "a value that is not aligned");
    }

    // [slab][channel][floats] of a value.
    void view(const View& v, int64_t slabs, int64_t channels, Wide floats, bool aligned = true) {
        need(v.slab >= 0 && v.chan >= 0, "a negative stride");
        need(!aligned || (v.slab % kLanes == 0 && v.chan % kLanes == 0), "a stride that is not aligned");
        span(v.at, Wide(slabs - 1) * v.slab + Wide(channels - 1) * v.chan + floats, aligned);
    }

    void scratch(Wide floats) { need(at_most(floats, room.scratch), "more scratch than there is"); }

    // Whether an array with at least this many numbers was given.
    template <class T>
    bool array(const T* data, Wide size) {
        if (equal(size, 0)) return true;
        int64_t bytes = -1;
        for (int64_t i = 0; i < room.count; i++)
            if (room.arrays[i].data == data && room.arrays[i].bytes > bytes) bytes = room.arrays[i].bytes;
        bool sound = data && bytes >= 0 && at_most(size * int64_t(sizeof(T)), bytes);
        need(sound, "an array that is too short or was not given");
        return sound;
    }

    void activation(const Active& a) { need(between(kNone, a.kind, kActivations - 1), "an unknown activation"); }

    // Checks ascending bounds of lists, starting at 0; returns the last one, or -1.
    int64_t ascending(const int64_t* bounds, int64_t lists) {
        if (!array(bounds, Wide(lists) + 1)) return -1;
        bool sound = bounds[0] == 0;
        for (int64_t i = 0; i < lists; i++) sound = sound && bounds[i] <= bounds[i + 1];
        need(sound, "lists that are not in order");
        return sound ? bounds[lists] : -1;
    }

    // What a convolution writes or adds: in slabs, or rows of `columns` floats.
    void result(const Conv& c, const View& v) {
        if (c.columns)
            view({v.at, 0, v.chan}, 1, c.channels, Wide(c.rows) * c.columns, false);
        else
            view(v, c.slabs, c.channels, Wide(c.rows) * kLanes);
    }

    void conv(const Conv& c, int64_t given) {
        counts({c.slabs, c.rows, c.channels, c.height, c.groups, c.blocks});
        need(between(1, c.step, kFar) && c.step % kLanes == 0, "a step that is not aligned");
        bool wide = c.lanes == 16 && room.lanes >= 16 && c.step == kLanes;
        need(c.lanes == kLanes || (wide && c.height % 2 == 0), "vectors that this kernel cannot have");
        int64_t tallest = c.width == 1 ? (wide ? 16 : 14) : c.width == 4 ? (wide ? 12 : 3) : c.width == 2 && !wide ? 6 : 0;
        need(c.height <= tallest, "a kernel shape there is none for");
        if (wrong) return;
        need(c.channels % c.width == 0, "channels that the kernel's width does not divide");
        activation(c.activation);
        need(c.by_group == 0 || c.by_group == 1, "a flag that is neither 0 nor 1");
        tasks(Wide(c.slabs) * parts(c.rows, c.height) * c.groups, given);
        int64_t chunks = c.channels / c.width;
        Wide lists = Wide(c.blocks) * chunks;
        array(c.bias, c.channels);
        if (!at_most(lists, kFar) || !array(c.base, lists)) return need(false, "too many lists");
        int64_t taps = ascending(c.starts, lists.value);
        if (taps < 0 || !array(c.offsets, taps) || !array(c.values, Wide(taps) * c.width)) return;
        int64_t low = 0, high = 0;  // rows read, relative to the view
        bool near = true;
        for (int64_t list = 0; list < lists.value; list++) {
            if (c.starts[list] == c.starts[list + 1]) continue;
            near = near && between(-kFar, c.base[list], kFar);
            if (!near) break;
            uint16_t least = 0xffff, most = 0;
            for (int64_t i = c.starts[list]; i < c.starts[list + 1]; i++) {
                least = c.offsets[i] < least ? c.offsets[i] : least;
                most = c.offsets[i] > most ? c.offsets[i] : most;
            }
            low = c.base[list] + least < low ? c.base[list] + least : low;
            high = c.base[list] + most > high ? c.base[list] + most : high;
        }
        need(near, "a tap that is too far away");
        if (wrong) return;
        if (taps) {
            Wide first = Wide(c.in.at) + Wide(low) * kLanes;
            need(!first.over && first.value >= 0, "a tap before the beginning of the arena");
            view({c.in.at, c.in.slab, 0}, c.slabs, 1, Wide(c.rows - 1) * c.step + Wide(high) * kLanes + kLanes);
        }
        need(between(0, c.columns, kFar) && (!c.columns || parts(c.columns, kLanes) == c.slabs),
             "columns that are not those of its slabs");
        result(c, c.out);
        if (c.res.at >= 0) result(c, c.res);
        int64_t end = ascending(c.splits, c.groups);
        if (end < 0) return;
        need(end == chunks, "groups that do not cover the channels");
        const int64_t tiles = c.columns ? (c.res.at >= 0 ? 2 : 1) : c.blocks > 1;
        for (int64_t g = 0; g < c.groups; g++)
            scratch(Wide(c.splits[g + 1] - c.splits[g]) * c.width * c.height * kLanes * tiles);
    }

    // The planes of one channel; the caller checks where they are written.
    void plane_set(const Planes& p, int64_t given) {
        counts({p.channels, p.height, p.width, p.slabs, p.rows, p.taps, p.phases, p.stride_x, p.stride_y});
        need(p.plain == 0 || p.plain == 1, "a flag that is neither 0 nor 1");
        if (wrong || !array(p.x_first, p.taps) || !array(p.y_first, p.phases)) return;
        for (int64_t i = 0; i < p.taps; i++) need(between(-kFar, p.x_first[i], kFar), "a column that is too far away");
        for (int64_t i = 0; i < p.phases; i++) need(between(-kFar, p.y_first[i], kFar), "a row that is too far away");
        need(at_most(Wide(p.slabs) * kLanes * p.stride_x, kFar), "a stride that is too large");
        need(at_most(Wide(p.rows) * p.stride_y, kFar), "a stride that is too large");
        need(at_most(Wide(p.phases) * p.taps, kFar), "too many planes");
        tasks(Wide(p.slabs) * parts(p.channels, kPlaneChannels), given);
        if (p.plain)
            view({p.in.at, 0, p.in.chan}, 1, p.channels, Wide(p.height) * p.width, false);
        else
            view(p.in, parts(p.width, kLanes), p.channels, Wide(p.height) * kLanes);
        if (wrong || p.skip == -1) return;
        need(between(0, p.skip, p.phases * p.taps - 1), "a plane that is not there");
        need(between(-p.rows, p.y_first[0], 0), "a plane that begins within the image");
    }

    void planes(const Planes& p, int64_t given) {
        plane_set(p, given);
        if (!wrong && p.columns) {
            need(between(1, p.columns, kFar) && parts(p.columns, kLanes) == p.slabs && p.phases * p.taps == 1 && p.skip == -1,
                 "columns that are not those of one plane");
            scratch(Wide(p.rows) * kLanes);
            return view({p.at, 0, p.chan}, 1, p.channels, Wide(p.rows) * p.columns, false);
        }
        if (!wrong) view({p.at, p.slab, p.chan}, p.slabs, p.channels, Wide(p.phases) * p.taps * p.rows * kLanes);
    }

    void pool(const Pool& p, int64_t given) {
        plane_set(p.planes, given);
        counts({p.rows, p.count});
        if (wrong) return;
        Wide rows = Wide(p.planes.phases) * p.planes.taps * p.planes.rows;
        scratch(rows * kLanes);
        view(p.out, p.planes.slabs, p.planes.channels, Wide(p.rows) * kLanes);
        if (wrong || !array(p.offsets, p.count)) return;
        for (int64_t i = 0; i < p.count; i++)
            need(p.offsets[i] >= 0 && at_most(Wide(p.offsets[i]) + p.rows, rows.value), "a tap outside of the planes");
        if (p.average) array(p.scale, Wide(p.planes.slabs) * p.rows * kLanes);
    }

    void window(const Window& w, int64_t given) {
        counts({w.channels, w.height, w.width, w.out_height, w.out_width, w.kernel_y, w.kernel_x});
        counts({w.stride_y, w.stride_x, w.dilation_y, w.dilation_x});
        need(between(0, w.pad_y, kFar) && between(0, w.pad_x, kFar), "a padding that is not a count");
        if (wrong) return;
        need(at_most(Wide(w.out_height) * w.stride_y + Wide(w.kernel_y) * w.dilation_y, kFar) &&
                 at_most(Wide(w.out_width) * w.stride_x + Wide(w.kernel_x) * w.dilation_x, kFar),
             "a window that is too large");
        tasks(Wide(w.out_height) * w.channels, given);
        view(w.in, w.height, w.channels, Wide(w.width) * kLanes);
        view(w.out, w.out_height, w.channels, Wide(w.out_width) * kLanes);
    }

    void binary(const Binary& p, int64_t given) {
        counts({p.slabs, p.channels, p.rows});
        activation(p.activation);
        if (wrong) return;
        need(between(0, p.operation, kOperations - 1), "an unknown operation");
        need(p.b_row == 0 || p.b_row == kLanes, "rows of an operand that do not follow one another");
        tasks(Wide(p.slabs) * p.channels * parts(p.rows, kBinaryRows), given);
        view(p.a, p.slabs, p.channels, Wide(p.rows) * kLanes);
        view(p.out, p.slabs, p.channels, Wide(p.rows) * kLanes);
        Wide floats = Wide(p.rows - 1) * p.b_row + kLanes;
        if (p.constant) {
            need(p.b.slab >= 0 && p.b.chan >= 0, "a negative stride");
            array(p.constant, Wide(p.slabs - 1) * p.b.slab + Wide(p.channels - 1) * p.b.chan + floats);
        } else if (!p.unary) {
            view(p.b, p.slabs, p.channels, floats);
        } else {
            span(p.b.at, 0, false);
        }
    }

    void norm(const Norm& p, int64_t given) {
        counts({p.slabs, p.channels, p.rows});
        if (wrong) return;
        tasks(Wide(p.slabs) * parts(p.rows, 2), given);
        view(p.in, p.slabs, p.channels, Wide(p.rows) * kLanes);
        view(p.out, p.slabs, p.channels, Wide(p.rows) * kLanes);
        array(p.weight, p.channels);
        array(p.bias, p.channels);
    }

    void softmax(const Softmax& p, int64_t given) {
        counts({p.channels, p.rows, p.groups});
        need(p.flat >= 0, "a negative extent");
        need(p.safe == 0 || p.safe == 1, "a flag that is neither 0 nor 1");
        if (wrong) return;
        tasks(p.flat ? Wide(1) : Wide(p.rows) * p.groups, given);
        Wide channels = Wide(p.channels) * p.groups;
        need(at_most(channels, kFar), "too many channels");
        if (wrong) return;
        if (p.flat) {
            span(p.in.at, p.flat, false);
            span(p.out.at, p.flat, false);
        } else {
            view(p.in, 1, channels.value, Wide(p.rows) * kLanes);
            view(p.out, 1, channels.value, Wide(p.rows) * kLanes);
        }
    }

    // The last float of an operand, relative to its start.
    Wide reach(const Operand& o, int64_t groups, int64_t heads, int64_t rows, int64_t depth) {
        for (int64_t stride : {o.group, o.head, o.row, o.depth}) need(between(0, stride, kFar), "a stride that is too large");
        return Wide(groups - 1) * o.group + Wide(heads - 1) * o.head + Wide(rows - 1) * o.row + Wide(depth - 1) * o.depth;
    }

    // Rows that are read in whole vectors, up to 7 floats beyond the last one.
    int64_t in_lanes(int64_t rows) { return parts(rows, kLanes) * kLanes; }

    void product(const Product& p, int64_t given) {
        counts({p.groups, p.heads, p.rows, p.columns, p.depth});
        if (wrong) return;
        tasks(Wide(p.groups) * p.heads * parts(p.rows, kTokens), given);
        need(p.a.row == 1 && p.out.row == 1, "rows that do not lie together");
        span(p.a.at, reach(p.a, p.groups, p.heads, in_lanes(p.rows), p.depth) + 1, false);
        span(p.b.at, reach(p.b, p.groups, p.heads, p.columns, p.depth) + 1, false);
        span(p.out.at, reach(p.out, p.groups, p.heads, p.rows, p.columns) + 1, false);
        scratch(Wide(kTokens) * p.columns);
    }

    void attention(const Attention& p, int64_t given) {
        counts({p.groups, p.heads, p.dim, p.value_dim, p.tokens, p.keys});
        if (wrong) return;
        tasks(Wide(p.groups) * p.heads * parts(p.tokens, kTokens), given);
        need(p.q.row == 1 && p.out.row == 1, "tokens that do not lie together");
        span(p.q.at, reach(p.q, p.groups, p.heads, in_lanes(p.tokens), p.dim) + 1, false);
        span(p.k.at, reach(p.k, p.groups, p.heads, p.keys, p.dim) + 1, false);
        span(p.v.at, reach(p.v, p.groups, p.heads, p.keys, p.value_dim) + 1, false);
        span(p.out.at, reach(p.out, p.groups, p.heads, p.tokens, p.value_dim) + 1, false);
        need(between(0, p.scale_group, kFar) && between(0, p.scale_head, kFar), "a stride that is too large");
        array(p.scale, Wide(p.groups - 1) * p.scale_group + Wide(p.heads - 1) * p.scale_head + 1);
        need(p.safe == 0 || p.safe == 1, "a flag that is neither 0 nor 1");
        need(p.bias.at >= -1, "a bias before the beginning of the arena");
        if (p.bias.at >= 0) {
            need(p.bias.row == 0 || p.bias.row == 1, "tokens of a bias that do not lie together");
            Wide size = reach(p.bias, p.groups, p.heads, in_lanes(p.tokens), p.keys) + 1;
            if (p.constant) {
                need(p.bias.at <= kFar, "a bias that is too far away");
                array(p.constant, size + p.bias.at);
            } else {
                span(p.bias.at, size, false);
            }
        }
        scratch(Wide(kTokens) * (Wide(p.keys) + p.value_dim));
    }

    void mean(const Mean& p, int64_t given) {
        counts({p.slabs, p.channels, p.rows, p.width});
        need(between(0, p.out_chan, kFar), "a negative stride");
        if (wrong) return;
        tasks(p.channels, given);
        view(p.in, p.slabs, p.channels, Wide(p.rows) * kLanes);
        span(p.at, Wide(p.channels - 1) * p.out_chan + (p.images ? kLanes : 1), p.images != 0);
        need(!p.images || p.out_chan % kLanes == 0, "a stride that is not aligned");
    }

    void linear(const Linear& p, int64_t given) {
        counts({p.inputs, p.outputs});
        activation(p.activation);
        if (wrong) return;
        tasks(parts(p.outputs, kLinearOutputs), given);
        span(p.at, p.inputs, true);
        span(p.out, p.outputs, false);
        if (p.res >= 0) span(p.res, p.outputs, false);
        array(p.bias, p.outputs);
        if (!p.columns) {
            array(p.values, Wide(p.outputs) * (parts(p.inputs, kLanes) * kLanes));
            return;
        }
        int64_t taps = ascending(p.starts, p.outputs);
        if (taps < 0 || !array(p.columns, taps) || !array(p.values, taps)) return;
        bool sound = true;
        for (int64_t i = 0; i < taps; i++) sound = sound && p.columns[i] < p.inputs;
        need(sound, "a column that is not there");
    }

    void gather(const Gather& p, int64_t given) {
        need(between(0, p.count, kFar) && between(kFloats, p.move, kOutOfLanes), "an unknown move");
        need(p.at >= 0 && p.out >= 0, "a value before the beginning of the arena");
        if (wrong) return;
        tasks(parts(p.count, kGatherCount), given);
        if (!array(p.from, p.count) || !array(p.to, p.count) || !p.count) return;
        int64_t from = 0, least = 0, to = 0, first = 0;  // the largest and smallest index of each
        int32_t bits = 0;
        for (int64_t i = 0; i < p.count; i++) {
            from = p.from[i] > from ? p.from[i] : from;
            least = p.from[i] < least ? p.from[i] : least;
            to = p.to[i] > to ? p.to[i] : to;
            first = p.to[i] < first ? p.to[i] : first;
            bits |= p.to[i] | (p.from[i] > 0 && !p.constant ? p.from[i] : 0);
        }
        bool lanes = p.move == kIntoLanes || p.move == kOutOfLanes, rows = p.move == kRows;
        need(first >= 0 && (!lanes || (least >= 0 && !p.constant)), "an index before the beginning");
        bool aligned = bits % kLanes == 0 && p.out % kLanes == 0 && (p.constant || p.at % kLanes == 0);
        need(!rows || aligned, "a row that is not aligned");
        int64_t row = p.move == kFloats ? 1 : kLanes, images = (kLanes - 1) * p.count + 1;  // floats from an index on
        if (p.constant)
            array(p.constant, Wide(from) + 1);
        else
            span(p.at, Wide(from) + (p.move == kIntoLanes ? images : row), false);
        span(p.out, Wide(to) + (p.move == kOutOfLanes ? images : row), false);
    }

    // Every nest must stay within the source and the arena, and have as many tasks as its outer loops need.
    void move(const Move& p, int64_t given) {
        need(between(1, p.count, kFar) && p.at >= 0 && p.out >= 0, "an unknown move");
        if (wrong || !array(p.nests, p.count)) return;
        int64_t next = 0;
        for (int64_t i = 0; i < p.count && !wrong; i++) {
            const Nest& n = p.nests[i];
            need(n.first == next && between(1, n.chunk, kFar), "tasks that do not follow one another");
            need(between(kCopy, n.inner, kScalar), "an unknown inner loop");
            Wide total = 1, from[2] = {n.source, n.source}, to[2] = {n.target, n.target};  // minimum and maximum
            for (int64_t a = 0; a < kAxes && !wrong; a++) {
                const auto& axis = n.axis[a];
                counts({axis.size});
                need(between(-kFar, axis.from, kFar) && between(-kFar, axis.to, kFar), "a stride that is too large");
                if (wrong) return;
                if (a < kAxes - 2) total = total * axis.size;
                from[axis.from > 0] = from[axis.from > 0] + Wide(axis.size - 1) * axis.from;
                to[axis.to > 0] = to[axis.to > 0] + Wide(axis.size - 1) * axis.to;
            }
            const auto &before = n.axis[kAxes - 2], &last = n.axis[kAxes - 1];
            need(n.inner != kCopy || (last.from == 1 && last.to == 1), "rows that do not lie together");
            need(n.inner != kTranspose || (before.from == 1 && last.to == 1), "blocks that do not lie together");
            need(!total.over && !from[0].over && from[0].value >= 0 && !to[0].over && to[0].value >= 0,
                 "a move from before the beginning");
            if (wrong) return;
            if (p.constant)
                array(p.constant, from[1] + 1);
            else
                span(p.at, from[1] + 1, false);
            span(p.out, to[1] + 1, false);
            next += parts(total.value, n.chunk);
            need(next <= kFar, "too many tasks");
        }
        tasks(next, given);
    }

    void border(const Border& p, int64_t given) {
        counts({p.slabs, p.channels, p.rows});
        for (int64_t n : {p.top, p.bottom, p.left, p.right}) need(between(0, n, kFar), "a frame that is not a count");
        if (wrong) return;
        tasks(p.slabs, given);
        need(p.left + p.right <= p.rows, "a frame wider than the image");
        span(p.at, Wide(p.slabs) * p.channels * p.rows * kLanes, true);
    }
};

}  // namespace

const char* check(int64_t kind, const void* params, int64_t tasks, const Room& room) {
    Checker c(room);
    switch (kind) {
#define RP_CHECK(Name, FIELDS, name) case k##Name: c.name(*static_cast<const Name*>(params), tasks); break;
        RP_OPERATORS(RP_CHECK)
#undef RP_CHECK
        default: return "an operator there is none of";
    }
    return c.wrong;
}

}  // namespace rankprune
