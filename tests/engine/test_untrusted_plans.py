"""Plans made by hand to read or write where they may not, or to take the machine: refused before anything is allocated."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from _mutate import sealed_plan
from rankprune.engine import planfile, runtime
from rankprune.engine.backend import lowering, native, selfcheck
from rankprune.engine.backend.choice import Choice, KernelPlan
from rankprune.engine.backend.generated import jit_allowed
from rankprune.engine.backend.move import Gather
from rankprune.engine.graph.graph import Graph, Node, Weight
from rankprune.engine.graph.schema import Operator, integer
from rankprune.engine.graph.validate import Unsound, check

SRC = Path(planfile.__file__).parents[2]


def conv(shape, out, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), weights=1, **attrs):
    """A network of one convolution with a few weights."""
    weight = Weight(kernel, np.ones(weights, np.float32), np.arange(weights, dtype=np.int32))
    attrs = {"stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": 1,
             "activation": "none", **attrs}  # fmt: skip
    node = Node("conv", [0], 1, "c", attrs, {"bias": np.zeros(kernel[0], np.float32)}, weight)
    return Graph([shape, out], [node], [0], [1])


def pool(shape, out, kernel, padding, stride):
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": [1, 1], "average": 1, "count_pad": 0}
    return Graph([shape, out], [Node("pool", [0], 1, "p", attrs)], [0], [1])


def write(path: Path, graph: Graph, choice: Choice | None = None, eight: bool = False) -> Path:
    choices = {0: choice} if choice else {}
    planfile.write(path, graph, KernelPlan(choices, choices), eight)
    return path


def linear_with(**attrs) -> Graph:
    weight = Weight((4, 4), np.ones(16, np.float32), None)
    node = Node("linear", [0], 1, "l", {"activation": "none", **attrs}, {"bias": np.zeros(4, np.float32)}, weight)
    return Graph([(8, 4), (8, 4)], [node], [0], [1])


def test_a_linear_layer_has_no_groups():
    """One added field once made the kernel read channels that are not there."""
    check(linear_with())
    for groups in (1, 2, 1 << 19):
        with pytest.raises(Unsound, match="'linear l' has an unknown attribute 'groups'"):
            check(linear_with(groups=groups))


def test_every_field_is_declared():
    """Whatever a node of any operator carries beside its declaration is refused, and nothing may be left out."""
    op = Operator((1, 1), lambda node, ins, out: True, {"n": integer(1, 3)})
    for attrs, sentence in (({}, "lacks the attribute n"), ({"n": 4}, "has n=4"), ({"n": True}, "has n=True"),
                            ({"n": 1, "m": 1}, "unknown attribute 'm'")):  # fmt: skip
        with pytest.raises(Unsound, match=sentence):
            op.check(Node("x", [0], 1, attrs=attrs), [(1,)], (1,))
    with pytest.raises(Unsound, match="unknown array 'z'"):
        op.check(Node("x", [0], 1, attrs={"n": 1}, arrays={"z": np.zeros(1)}), [(1,)], (1,))
    with pytest.raises(Unsound, match="reads 2 values"):
        op.check(Node("x", [0, 0], 1, attrs={"n": 1}), [(1,), (1,)], (1,))


FAR = 1 << 20
HUGE = {
    # Rows of the planes reach from the padding above to the one below.
    "padding": conv((1, 1, 1), (1, 2, 2), (1, 1, 1, 1), stride=(FAR, FAR), padding=(FAR // 2, FAR // 2)),
    "dilation": conv((1024, 1, 1), (1, 1, 1), (1, 1024, 2, 2), padding=(FAR // 2, FAR // 2), dilation=(FAR, FAR)),
    "kernel": conv((1, 1, 1), (1, 2, 2), (1, 1, 1 << 20, 1 << 10), padding=(FAR // 2, 1 << 9)),
    "wide": conv((1, 1, 1), (1, 1, FAR * 2 + 1), (1, 1, 1, 1), padding=(0, FAR)),
    "pool": pool((64, 1, 1), (64, 1, 1), [FAR, FAR], [FAR // 2, FAR // 2], [FAR, FAR]),
}
REFUSED = ("dilation", "kernel", "pool")  # the others ask for less than the limit, and run


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("eight", [False, True])
def test_small_files_that_ask_for_much_are_refused(name, eight, tmp_path):
    """In a process that may have 3 GB: nothing is allocated, nothing is run."""
    path = write(tmp_path / "p", HUGE[name], eight=eight)
    code = f"""
import resource, sys, numpy as np
from rankprune.engine import runtime
resource.setrlimit(resource.RLIMIT_AS, (3 << 30,) * 2)
try:
    net = runtime.load({str(path)!r}, 1)
    net(np.ones((8, *net.input_shapes[0]), np.float32))
except runtime.DamagedPlan as error:
    print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {"PYTHONPATH": str(SRC)}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr[-1500:]
    assert path.stat().st_size < 800
    sentence = r"asks for [\d.]+ GB of memory or more, and 1\.07 GB are allowed: pass max_memory=\d+ .* if you trust it\n"
    assert re.search(sentence, done.stdout) if name in REFUSED else done.stdout == ""


def test_the_limits_can_be_raised(tmp_path):
    """What a file may ask for by default, and what the caller allows."""
    path = write(tmp_path / "p", conv((1, 500, 500), (2, 500, 500), (2, 1, 1, 1)))
    with pytest.raises(runtime.DamagedPlan, match=r"asks for 0\.00 GB of memory or more, .* pass max_memory=\d+ \(bytes\)"):
        runtime.load(path, 1, max_memory=100_000)
    with pytest.raises(runtime.DamagedPlan, match=r"asks for [\d.e+]+ multiply-adds per image or more, .* max_work="):
        runtime.load(path, 1, max_work=100_000)
    x = np.ones((1, 1, 500, 500), np.float32)
    for net in (runtime.load(path, 1), runtime.load(path, 1, max_memory=math.inf, max_work=1e9)):
        np.testing.assert_array_equal(net(x)[0, 0], x[0, 0])


def test_a_window_of_a_million_taps_is_refused(tmp_path):
    """384 bytes that once ran for most of a minute: every output is a maximum over the whole padded image."""
    path = write(tmp_path / "p", pool((64, 1000, 1000), (64, 1000, 1000), [1001, 1001], [500, 500], [1, 1]), eight=True)
    assert path.stat().st_size < 500
    with pytest.raises(runtime.DamagedPlan, match=r"multiply-adds per image|GB of memory"):
        runtime.load(path, 1)


def test_memory_is_the_sum_over_the_operators(tmp_path):
    """64 kB of operators that are each small, and together hold many times as much: a number, repeated for each place."""
    count = 200
    shapes = [(64, 64, 4, 8)] * (count + 1)
    one = {"constant": np.ones((1, 1, 1, 1), np.float32)}
    nodes = [Node("add", [0], i + 1, "", {"activation": "none"}, one) for i in range(count)]
    path = write(tmp_path / "p", Graph(shapes, nodes, [0], [count]))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(runtime.DamagedPlan, match=r"0\.07 GB of memory or more, and 0\.07 GB are allowed"):
        runtime.load(path, 1, max_memory=1 << 26)


def test_an_array_belongs_to_one_operator(tmp_path):
    """One array that many operators share would be unpacked once for each of them."""
    path = write(tmp_path / "p", conv((1, 3, 3), (1, 3, 3), (1, 1, 1, 1)))
    data = path.read_bytes()
    length = int.from_bytes(data[12:20], "little")
    header, rest = json.loads(data[52 : 52 + length]), data[52 + length :]
    header["nodes"].append({**header["nodes"][0], "output": 2})
    header["shapes"].append([1, 3, 3])
    with pytest.raises(planfile.DamagedPlan, match="is not a sound plan: an array"):
        planfile.parse(sealed_plan(header, rest))


class Recorder(native.Program):
    """A program that keeps what was added to it."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self, variant: str, threads: int, arena: int, scratch: int) -> None:
        super().__init__(variant, threads, arena, scratch)
        self.sizes, self.calls = (arena, scratch), []
        Recorder.made.append(self)

    def add(self, params, tasks, arrays=()):
        self.calls.append((params, tasks, arrays))
        return super().add(params, tasks, arrays)


VARIANT = native.variants()[0]


@pytest.fixture
def every_call(monkeypatch):
    """One call of each kind of kernel, with the arena and scratch of its program."""
    Recorder.made = []
    monkeypatch.setattr(lowering, "Program", Recorder)
    for graph, eight, choices in [*selfcheck.cases()[:4], *selfcheck.cases()[-2:]]:
        lowering.lower(graph, eight, VARIANT, 1, choices)
    kinds = {type(call[0]): (made.sizes, *call) for made in Recorder.made for call in made.calls}
    generated = native.lanes(VARIANT) == 16 and jit_allowed()
    assert {kind.__name__ for kind in kinds} == set(native.operators()) - (set() if generated else {"JitConv", "Phases"})
    return list(kinds.values())


def counters(params, path=()):
    """The paths of all integers in a structure."""
    for name, kind in params._fields_:
        if issubclass(kind, ctypes.Structure):
            yield from counters(kind, (*path, name))
        elif kind is ctypes.c_int64:
            yield (*path, name)


def changed(params, path, value):
    """A copy with another number at a place."""
    copy = type(params).from_buffer_copy(params)
    spot = copy
    for name in path[:-1]:
        spot = getattr(spot, name)
    setattr(spot, path[-1], value)
    return copy


UNUSED = {("planes", "at"), ("b", "at")}  # of a pool, which works in the scratch; of an operator with a constant


def test_the_kernels_check_what_they_are_given(every_call):
    """A place beyond the arena, other extents, other tasks or a shorter array: refused before anything runs."""
    for (arena, scratch), params, tasks, arrays in every_call:
        made = native.Program(VARIANT, 1, arena, scratch)
        made.add(params, tasks, arrays)
        for path in counters(params):
            if path[-1] == "at" and path not in UNUSED and path[0] != "res":
                for value in (-8, arena, 1 << 40, (1 << 63) - 8):
                    with pytest.raises(ValueError, match="would use"):
                        made.add(changed(params, path, value), tasks, arrays)
            if path[-1] in ("slabs", "rows", "channels", "outputs", "heads", "count", "out_height", "blocks", "groups"):
                for value in (0, -1, 1 << 30, 1 << 62):
                    with pytest.raises(ValueError, match="would use"):
                        made.add(changed(params, path, value), tasks, arrays)
        for wrong in (-1, tasks + 1, 1 << 62):
            with pytest.raises(ValueError, match="another number of tasks"):
                made.add(params, wrong, arrays)
        if arrays:
            with pytest.raises(ValueError, match="an array that is too short or was not given"):
                made.add(params, tasks, [])
        with pytest.raises(ValueError, match="would use"):
            native.Program(VARIANT, 1, 8, 0).add(params, tasks, arrays)
        assert made.size == 1


def test_what_the_kernels_accept_they_can_run(every_call):
    """Each number changed by little: whatever passes the check stays within memory (`test_sanitizers.py` runs this too)."""
    ran = 0
    for (arena, scratch), params, tasks, arrays in every_call:
        for path in counters(params):
            for value in (-1, 0, 1, 2, 7, 8, 9, 16, 64, 1000):
                made = native.Program(VARIANT, 1, arena, scratch)
                try:
                    made.add(changed(params, path, value), tasks, arrays)
                except ValueError:
                    continue
                made.run([], [])
                ran += 1
    assert ran > 100


def test_indices_beyond_the_arena_are_refused():
    made, one = native.Program(VARIANT, 1, 64, 0), np.zeros(1, np.int32)
    for move, source, target, sound in ((0, 63, 31, True), (0, 64, 0, False), (0, 0, 32, False), (1, 56, 24, True),
                                        (1, 57, 0, False), (1, 64, 0, False), (2, 0, 24, True), (2, 0, 25, False),
                                        (2, -1, 0, False), (0, 0, -1, False), (3, 56, 24, True), (4, 0, 0, False)):  # fmt: skip
        index, to = one + source, one + target
        params = Gather(0, 32, 1, move, index.ctypes.data, to.ctypes.data, None)
        if sound:
            made.add(params, 1, [index, to])
            continue
        with pytest.raises(ValueError, match="the operator Gather would use"):
            made.add(params, 1, [index, to])


def test_a_copy_into_the_program_must_fit():
    made, x = native.Program(VARIANT, 1, 64, 0), np.zeros(100, np.float32)
    made.run([(x.ctypes.data, 0, 64)], [])
    for at, count in ((0, 65), (1, 64), (-1, 2), (64, 1), (0, -1), ((1 << 63) - 1, 2)):
        with pytest.raises(ValueError, match="does not fit the place"):
            made.run([(x.ctypes.data, at, count)], [])
        with pytest.raises(ValueError, match="does not fit the place"):
            made.run_groups([], [(x.ctypes.data, at, count)], 1, 1)


def test_taps_of_a_pool_must_ascend(every_call):
    """The kernel takes the first and last tap of a window for its bounds, along x and y."""
    (arena, scratch), params, tasks, arrays = next(call for call in every_call if type(call[1]).__name__ == "Pool")
    made = native.Program(VARIANT, 1, arena, scratch)
    for name, pointer in (("x_first", params.planes.x_first), ("offsets", params.offsets)):
        source = next(array for array in arrays if array.ctypes.data == pointer)
        step = 1 if name == "x_first" else params.planes.taps
        swapped = source.copy()
        swapped[[step, 2 * step]] = swapped[[2 * step, step]]
        path = ("planes", name) if name == "x_first" else (name,)
        others = [array for array in arrays if array is not source]
        with pytest.raises(ValueError, match="the operator Pool would use taps that are not in order"):
            made.add(changed(params, path, swapped.ctypes.data), tasks, [*others, swapped])


def test_an_operator_without_tasks_is_refused():
    """A program waits until all tasks of an operator are done, and nobody would do the last one of none."""
    made, none = native.Program(VARIANT, 1, 64, 0), np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="the operator Gather would use"):
        made.add(Gather(0, 32, 0, 0, none.ctypes.data, none.ctypes.data, None), 0, [none, none])
