"""The control of the λ figure: RPG that grows by noise of the rank gradient's size."""

from __future__ import annotations

import pytest
import torch

import rankprune as rp
from _nets import batch, cnn, sgd, train
from rankprune.methods import rpg


def grown_by(signal: str, lam: float, seed: int = 0) -> dict[str, torch.Tensor]:
    model = cnn()
    optimizer = sgd(model)
    options = {"lam": lam, "rank_signal": signal, "every": 2, "prune_end": 0.5, "seed": seed}
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.8, total_steps=12, **options)
    train(model, optimizer, 1, 12)
    return {name: mask.clone() for name, mask in sp.masks.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_noise_grows_other_weights_than_rank_and_than_nothing() -> None:
    plain, rank, noise = grown_by("rank", 0.0), grown_by("rank", 50.0), grown_by("noise", 50.0)
    assert not same(plain, noise)
    assert not same(rank, noise)
    assert same(noise, grown_by("noise", 50.0))  # keyed by (seed, step, name)
    assert not same(noise, grown_by("noise", 50.0, seed=1))
    assert same(grown_by("noise", 0.0), plain)


def test_its_size_is_that_of_the_rank_gradient_where_weights_may_grow() -> None:
    model = cnn()
    sp = rp.attach(model, sgd(model), "rpg", sparsity=0.8, total_steps=12, every=2)
    x, y = batch(0)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    layer = max((s for s in sp.layers if s.kind == "conv"), key=lambda s: s.numel)
    layer.mask.copy_(torch.rand(layer.shape, generator=torch.Generator().manual_seed(0)) < 0.3)
    layer.apply_mask(layer.weight)
    (group,) = sp.groups
    ((_, rank),) = rpg.RPG(lam=3.0, delta=0.2).rank_terms(group, [layer], lambda s: ~s.mask, 1)
    size = rank[~layer.mask].square().mean().sqrt()
    control = rpg.RPG(lam=3.0, delta=0.2, rank_signal="noise")
    ((_, noise),) = control.rank_terms(group, [layer], lambda s: ~s.mask, 1)
    assert noise.shape == layer.shape
    assert float(noise.square().mean().sqrt()) == pytest.approx(float(size), rel=0.2)


def test_an_unknown_signal_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="rank_signal='luck' is unknown: use 'rank' or 'noise'"):
        rpg.RPG(rank_signal="luck")
