"""Plans made by hand to read or write where they may not, or to take the machine: refused before anything is allocated."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankprune.engine import planfile
from rankprune.engine.check import Unsound, check
from rankprune.engine.graph import Graph, Node, Weight
from rankprune.engine.packing import Choice
from rankprune.engine.schema import Operator, integer

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
    planfile.write(path, graph, {False: choices, True: choices}, eight)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    assert path.stat().st_size < 800
    sentence = r"asks for [\d.]+ GB of memory or more, and 1\.07 GB are allowed: pass max_memory=\d+ .* if you trust it\n"
    assert re.search(sentence, done.stdout) if name in REFUSED else done.stdout == ""
