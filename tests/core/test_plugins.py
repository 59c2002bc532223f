"""A method of one's own: registered by decorator, on each rung, used by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core import registry as _registry
from rankprune.core.method import Group, PrunableLayer
from rankprune.core.plan import AtOnce, Gradual, Periodic, Plan


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    rp.list_methods()
    before = dict(_registry._METHODS)
    yield
    _registry._METHODS.clear()
    _registry._METHODS.update(before)


def test_a_score_in_four_lines() -> None:
    @rp.register("last-first")
    @dataclass
    class LastFirst(rp.Score):
        """Keep what comes last."""

        plan: Plan = AtOnce()

        def score(self, layer: PrunableLayer) -> Tensor:
            return torch.arange(layer.numel, dtype=torch.float32).view(layer.shape)

    model = torch.nn.Linear(4, 2, bias=False)
    sp = rp.attach(model, sgd(model), "last-first", sparsity=0.5, total_steps=2)
    assert sp.masks["weight"].tolist() == [[False] * 4, [True] * 4]


def test_masks_of_ones_own() -> None:
    @rp.register("checkerboard")
    @dataclass
    class Checkerboard(rp.Masked):
        """Every other weight, the other half at every update."""

        plan: Plan = Periodic()

        def masks(self, group: Group) -> Sequence[Tensor]:
            flip = (group.plan.done(group.step) - 1) % 2
            return [(torch.arange(s.numel) % 2 == flip).view(s.shape) for s in group.layers]

    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "checkerboard", sparsity=0.5, total_steps=8, every=2)
    seen = []
    train(model, optimizer, 1, 8, lambda _: seen.append([m.clone() for m in sp.masks.values()]))
    assert not torch.equal(seen[2][0], seen[4][0])
    assert torch.equal(seen[2][0], seen[6][0])
    assert sp.finalize().kept == 1004


def test_a_score_without_a_plan_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hasty has no plan, so nothing says when it prunes: add `plan: Plan = AtOnce"):

        @rp.register("hasty")
        @dataclass
        class Hasty(rp.Score):
            """Says what stays, and not when."""

            def score(self, layer: PrunableLayer) -> Tensor:
                return layer.weight.abs()


def test_a_plan_goes_with_any_score() -> None:
    """Magnitude with the plan of gradual pruning is gradual magnitude pruning; settings of a plan stand beside it."""
    nets = [cnn(), cnn()]
    methods = [rp.methods.Magnitude(plan=Gradual(density_schedule="cubic")), rp.methods.GMP(every=2)]
    for net, method in zip(nets, methods):
        torch.manual_seed(0)
        optimizer = sgd(net)
        sp = rp.attach(net, optimizer, method, sparsity=0.9, total_steps=40)
        assert sp.sparsity == 0.0
        train(net, optimizer, 1, 40)
        assert sp.finalize().kept == 201
    with pytest.raises(ValueError, match=r"magnitude has no hyper-parameter 'every'"):
        rp.attach(cnn(), sgd(cnn()), "magnitude", sparsity=0.9, total_steps=40, every=2)


def test_two_methods_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="'rpg' is registered already"):

        @rp.register("rpg")
        class Other(rp.Score):
            """Another one."""


def test_a_plug_in_that_fails_is_named_and_the_others_work(tmp_path: Path) -> None:
    (tmp_path / "broken_plug.py").write_text("import no_such_package\n")
    info = tmp_path / "broken_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rankprune.methods]\nbroken = broken_plug\n")
    code = "import rankprune as rp; print('rpg' in rp.list_methods())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert "plug-in broken_plug is left out (ModuleNotFoundError: No module named 'no_such_package')" in done.stderr
