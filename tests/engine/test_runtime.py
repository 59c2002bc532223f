"""The runtime without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch

import rankprune as rp
from rankprune.engine import runtime
from rankprune.engine.backend.engine import Engine
from rankprune.engine.graph.graph import Graph, Node, Weight

SRC = Path(__file__).resolve().parents[2] / "src"


def test_the_runtime_does_not_import_torch():
    code = (
        "import sys, rankprune.engine.runtime as r; assert 'torch' not in sys.modules; print(r.default_threads() > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SRC), "PATH": ""},
    )
    assert done.stdout == "True\n"


def test_arrays_of_other_kinds(tmp_path):
    torch.manual_seed(0)
    rp.compile(torch.nn.Linear(4, 3).eval(), torch.zeros(1, 4), tune=False).save(tmp_path / "net.plan")
    net = runtime.load(tmp_path / "net.plan")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for same in (x.astype(np.float64), x.astype(np.uint8), x.astype(">f4"), np.asfortranarray(x), x.tolist()):
        np.testing.assert_array_equal(net(same), net(x))
    for odd in (x.astype(complex), x.astype(str)):
        with pytest.raises(ValueError, match=f"takes numbers as float32, not {odd.dtype}"):
            net(odd)


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory) -> Path:
    """The Python of an environment that holds NumPy and nothing else."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    if subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy"], capture_output=True).returncode:
        pytest.skip("NumPy cannot be installed into a fresh environment: is there a network?")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    return python


RUN = """
import json, sys, numpy as np
from rankprune.engine import runtime
net = runtime.load(sys.argv[1])
y = net(np.load(sys.argv[2]))
print(json.dumps([float(v) for v in np.asarray(y).ravel()]))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["torchvision:resnet50", "timm:deit_small_patch16_224"])
def test_large_networks_in_an_environment_without_torch(name, without_torch, tmp_path):
    torch.manual_seed(0)
    model = rp.models.create_model(name, 1000).eval()
    rp.prune(model, "random", sparsity=0.95, distribution="erk", seed=0)
    x = torch.randn(1, 3, 224, 224)
    rp.compile(model, x, tune=False).save(tmp_path / "net.plan")
    np.save(tmp_path / "x.npy", x.numpy())
    done = subprocess.run(
        [without_torch, "-c", RUN, tmp_path / "net.plan", tmp_path / "x.npy"], capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    with torch.inference_mode():
        want = model(x)[0]
    assert torch.tensor(json.loads(done.stdout)).sub(want).abs().max() <= 1e-4 * want.abs().max()


def test_an_engine_leaves_the_graph_it_was_given_as_it_is():
    weight = np.eye(4, 3, dtype=np.float32)
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "activation": "none"}
    kernel, bias = Weight.of(weight[:, :, None, None]), {"bias": np.zeros(4, np.float32)}
    node = Node("conv", [0], 1, attrs=attrs, weight=kernel, arrays=bias)
    graph = Graph([(3, 5, 5), (4, 5, 5)], [node], [0], [1])
    before = node.weight
    made = Engine(graph, threads=1)
    assert graph.nodes == [node]
    assert node.weight is before
    assert made.graph.nodes[0].weight is not before  # packed, as the kernels read it
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 5), np.float32)
    np.testing.assert_array_equal(made([x])[0][:, :3], x)
