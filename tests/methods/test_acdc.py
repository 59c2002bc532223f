"""AC/DC: the table of phases, a mask that stands within each, momentum that restarts, an exact end."""

from __future__ import annotations

import pytest
import torch

import rankprune as rp
from _nets import adamw, cnn, sgd, train

SPARSE = [(10, 15), (20, 25), (30, 35), (40, 45), (50, 55), (60, 65), (70, 75), (85, 100)]


@pytest.mark.parametrize("times", [1, 3])
def test_phases_are_those_of_the_paper_stretched(times: int) -> None:
    phases = rp.methods.ACDC().plan.phases(100 * times)
    expected = {a * times: True for a, _ in SPARSE} | {b * times: False for _, b in SPARSE[:-1]}
    assert phases == dict(sorted(expected.items()))


def test_masks_stand_within_a_phase_and_half_of_training_is_sparse() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "acdc", sparsity=0.9, total_steps=100)
    total, final = sp.groups[0].total, sp.groups[0].final
    seen: dict[int, list[torch.Tensor]] = {}
    counts = {}

    def watch(t: int) -> None:
        counts[t] = sum(int(m.sum()) for m in sp.masks.values())
        seen[t] = [m.clone() for m in sp.masks.values()]

    train(model, optimizer, 1, 100, watch)
    for t in range(1, 101):
        sparse = any(a <= t < b for a, b in SPARSE) or t == 100
        assert counts[t] == (final if sparse else total), t
    for a, b in SPARSE:
        assert all(torch.equal(x, y) for x, y in zip(seen[a], seen[b - 1]))
    assert sum(count == final for count in counts.values()) == 51  # after step t holds the mask of step t + 1
    assert not all(torch.equal(x, y) for x, y in zip(seen[10], seen[85]))
    sp.finalize()


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_restore_brings_zeros_back_and_all_momentum_restarts(make: object) -> None:
    model = cnn()
    optimizer = make(model)  # type: ignore[operator]
    sp = rp.attach(model, optimizer, "acdc", sparsity=0.9, total_steps=100)
    train(model, optimizer, 1, 14)
    masks = {n: m.clone() for n, m in sp.masks.items()}
    saved = optimizer.state_dict()
    key = "momentum_buffer" if make is sgd else "exp_avg"
    held = [state[key] for state in saved["state"].values()]
    train(model, optimizer, 15, 15)
    for name, parameter in model.named_parameters():
        assert optimizer.state[parameter][key].count_nonzero() == 0, name  # biases and norms too
        if name in masks:
            assert parameter.detach()[~masks[name]].count_nonzero() == 0
            assert sp.masks[name].all()
    assert any(tensor.count_nonzero() > 0 for tensor in held)  # what a checkpoint shares is not written into
    train(model, optimizer, 16, 16)
    assert any(dict(model.named_parameters())[n].detach()[~m].count_nonzero() > 0 for n, m in masks.items())


def test_it_must_end_sparse() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="the run ends sparse"):
        rp.attach(model, sgd(model), "acdc", sparsity=0.9, total_steps=100, prune_at=[0.2], restore_at=[0.5])


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_the_shortest_runs_end_exact(steps: int) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "acdc", sparsity=0.9, total_steps=steps)
    train(model, optimizer, 1, steps)
    assert sp.finalize().kept == sp.groups[0].final
