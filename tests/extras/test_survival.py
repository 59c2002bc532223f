"""What becomes of grown weights: counted by hand on a row of eight, and in a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.extras import Survival


def watched(masks: list[list[int]]) -> tuple[Survival, rp.Sparsifier]:
    """Updates that leave these masks, one after another."""
    model = nn.Sequential(nn.Conv2d(8, 1, 1, bias=False))
    method = rp.methods.RPG(every=1)
    survival = Survival()
    sp = rp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, sparsity=0.5, total_steps=20, extras=[survival])
    (group,) = sp.groups
    for mask in masks:
        sp.set_masks({"0.weight": torch.tensor(mask).bool().view(1, 8, 1, 1)})
        survival.look(group)
    return survival, sp


def test_shares_by_hand() -> None:
    """Update 1 grows 4 and 5, update 2 cuts 4 and grows 2, update 3 nothing, update 4 cuts 5 and grows 4 again."""
    survival, sp = watched([
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 0, 0, 0],
    ])  # fmt: skip
    # After 1 update: of 4 and 5 one, of 2 one. After 3: of 4 (back, but cut in between) and 5 none.
    assert survival.shares(sp.groups[0]) == {"1": pytest.approx(2 / 3), "3": 0.0}


def test_what_stays_from_the_start_is_not_grown() -> None:
    survival, sp = watched([[1, 1, 1, 1, 0, 0, 0, 0]] * 4)
    assert survival.shares(sp.groups[0]) == {}


def test_it_changes_nothing_and_goes_on_after_a_resume() -> None:
    def run(extras: list[Survival], stop: int = 0) -> tuple[nn.Module, rp.Sparsifier]:
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=60, every=2, extras=extras)
        if stop:
            train(model, optimizer, 1, stop)
            state = sp.state_dict(), model.state_dict(), optimizer.state_dict()
            model = cnn()
            optimizer = sgd(model)
            sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=60, every=2, extras=extras)
            sp.load_state_dict(state[0])
            model.load_state_dict(state[1])
            optimizer.load_state_dict(state[2])
        train(model, optimizer, stop + 1, 60)
        return model, sp

    plain, _ = run([])
    watch, again = Survival(), Survival()
    seen, sp = run([watch])
    resumed, other = run([again], stop=31)
    for model in (seen, resumed):
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters()))
    shares = watch.shares(sp.groups[0])
    assert shares == again.shares(other.groups[0])
    assert set(shares) == {"1", "3", "10"}
    assert 1 >= shares["1"] >= shares["3"] >= shares["10"] >= 0
    assert watch.shares(sp.groups[0], since=0.5) != shares


def test_it_is_for_methods_that_grow() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="survival counts what is grown and gmp grows nothing: use one such as rpg"):
        rp.attach(model, sgd(model), "gmp", sparsity=0.9, total_steps=60, extras=[Survival()])
