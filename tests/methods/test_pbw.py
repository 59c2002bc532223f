"""PBW: thresholds by hand, nested masks, equal shares a round, and the exact target."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.schedules import cut_share, evenly_spaced


def two_layers() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))
        model[1].weight.copy_(torch.tensor([[10.0], [20.0], [-30.0], [40.0]]))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def one_round(threshold: str) -> list[list[bool]]:
    model, optimizer = two_layers()
    sp = rp.attach(model, optimizer, "pbw", sparsity=0.5, total_steps=1, rounds=1, prune_end=1, threshold=threshold)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert sp.finalize().kept == 4
    return [mask.flatten().tolist() for mask in sp.masks.values()]


def test_std_by_hand() -> None:
    """|w|/σ: σ² = 7.25 in the first layer and 650 in the second: (.37 .74 1.11 1.49) and (.39 .78 1.18 1.57)."""
    assert one_round("std") == [[False, False, True, True], [False, False, True, True]]


def test_global_by_hand() -> None:
    """All of the second layer is larger; the first keeps the one weight that no layer may lose."""
    assert one_round("global") == [[False, False, False, True], [False, True, True, True]]


def test_each_layer_loses_just_what_is_below_q_sigma() -> None:
    """One q fits all layers: what is cut lies below q σ and what stays above, and masks are nested."""
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "pbw", sparsity=0.9, total_steps=24, rounds=3, prune_end=12)
    counts, last = [], {n: m.clone() for n, m in sp.masks.items()}
    weights: dict[str, torch.Tensor] = {}

    def look(step: int) -> None:
        nonlocal last
        for name, mask in sp.masks.items():
            assert not (mask & ~last[name]).any()
        if step in (4, 8, 12):
            counts.append(sum(int(m.sum()) for m in sp.masks.values()))
        last = {n: m.clone() for n, m in sp.masks.items()}

    train(model, optimizer, 1, 23, look)
    total = sum(m.numel() for m in last.values())
    share = 1 - (round(0.1 * total) / total) ** (1 / 3)
    assert counts == [cut_share(total, share, 1), cut_share(total, share, 2), round(0.1 * total)]
    sp.finalize()

    fresh = cnn()  # one round on weights that are known
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.0)
    weights = {n: p.detach().clone() for n, p in fresh.named_parameters()}
    sp = rp.attach(fresh, optimizer, "pbw", sparsity=0.6, total_steps=2, rounds=1, prune_end=1)
    train(fresh, optimizer, 1, 1)
    ratio = {n: weights[n].abs() / weights[n].std(correction=0) for n in sp.masks}
    q = min(float(ratio[n][m].min()) for n, m in sp.masks.items())
    for name, mask in sp.masks.items():
        assert int((~mask).sum()) == int((ratio[name] < q * (1 - 1e-6)).sum())


def test_rounds_are_even_and_fit_a_short_run() -> None:
    assert evenly_spaced(0, 60, 5) == [12, 24, 36, 48, 60]
    assert evenly_spaced(2, 12, 5) == [4, 6, 8, 10, 12]
    assert evenly_spaced(0, 3, 8) == [1, 2, 3]
    assert rp.methods.PBW(0.9).updates(1) == [1]


def test_settings_are_checked() -> None:
    for wrong, message in (({"threshold": "layer"}, "use 'std' or 'global'"), ({"rounds": 0}, "give an int of 1")):
        model, optimizer = two_layers()
        with pytest.raises(ValueError, match=message):
            rp.attach(model, optimizer, "pbw", sparsity=0.5, total_steps=9, **wrong)
    with pytest.raises(ValueError, match="pbw prunes while training"):
        rp.prune(cnn(), "pbw", sparsity=0.5)
