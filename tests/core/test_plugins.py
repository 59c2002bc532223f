"""A method of one's own: registered by decorator, on each rung, used by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune import _registry
from rankprune.method import Group, Periodic, Site


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

        def score(self, site: Site) -> Tensor:
            return torch.arange(site.numel, dtype=torch.float32).view(site.shape)

    model = torch.nn.Linear(4, 2, bias=False)
    sp = rp.attach(model, sgd(model), "last-first", sparsity=0.5, total_steps=2)
    assert sp.masks["weight"].tolist() == [[False] * 4, [True] * 4]


def test_masks_of_ones_own() -> None:
    @rp.register("checkerboard")
    @dataclass
    class Checkerboard(Periodic, rp.Masked):
        """Every other weight, the other half at every update."""

        def masks(self, group: Group) -> Sequence[Tensor]:
            flip = group.update_number() % 2
            return [(torch.arange(s.numel) % 2 == flip).view(s.shape) for s in group.sites]

    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "checkerboard", sparsity=0.5, total_steps=8, every=2)
    seen = []
    train(model, optimizer, 1, 8, lambda _: seen.append([m.clone() for m in sp.masks.values()]))
    assert not torch.equal(seen[2][0], seen[4][0])
    assert torch.equal(seen[2][0], seen[6][0])
    assert sp.finalize().kept == 1004


def test_two_methods_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="'rpg' is registered already"):

        @rp.register("rpg")
        class Other(rp.Score):
            """Another one."""
