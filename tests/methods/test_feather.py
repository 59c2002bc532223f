"""Feather: the threshold operator, the gradient rule, the schedule."""

from __future__ import annotations

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train


def test_operator_and_gradient_by_hand() -> None:
    """Top 2 of 4; T is the third largest, 0.3; the kept show (|w|³ - 0.3³)^(1/3), all latents get their gradient."""
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.Feather(prune_end=1), 0.5, 10)
    line.step(0.0)
    assert line.mask == [0, 1]
    assert line.weight.tolist() == pytest.approx([(0.125 - 0.027) ** (1 / 3), -((0.064 - 0.027) ** (1 / 3)), 0.0, 0.0])
    line.step([1.0, 1.0, 1.0, -1.0])
    assert line.layer.state["latent"][0].tolist() == pytest.approx([0.4, -0.5, 0.2, 0.2])


@pytest.mark.parametrize(("sparsity", "share"), [(0.9, 1.0), (0.95, 1.0), (0.96, 0.5), (0.99, 0.5)])
def test_theta_by_sparsity(sparsity: float, share: float) -> None:
    line = Line([0.9, *[0.1] * 199], rp.methods.Feather(prune_end=1), sparsity, 10)
    line.step(0.0)
    kept, out = line.mask, [i for i in range(200) if i not in line.mask]
    before = line.layer.state["latent"].clone()
    line.step(0.1)
    moved = (before - line.layer.state["latent"])[0]
    assert torch.allclose(moved[out], torch.full((len(out),), 0.01 * share))
    assert torch.allclose(moved[kept], torch.tensor(0.01), atol=1e-6)


def test_one_threshold_for_all_layers_and_nothing_lost() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "feather", sparsity=0.9, total_steps=20)

    def watch(_: int) -> None:
        thresholds = {float(layer.state["threshold"]) for layer in sp.layers}
        assert len(thresholds) == 1
        cut = max(float(s.state["latent"][~s.mask].abs().max()) for s in sp.layers if not s.mask.all())
        assert thresholds == {cut}
        assert all((s.weight[s.mask] != 0).all() for s in sp.layers)  # what is above T is shown, however little
        assert all((s.weight.abs() <= s.state["latent"].abs() + 1e-6).all() for s in sp.layers)

    train(model, optimizer, 1, 20, watch)
    sp.finalize()


def test_cubic_to_half_of_training() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "feather", sparsity=0.9, total_steps=40)
    total, final = sp.groups[0].total, sp.groups[0].final

    def watch(t: int) -> None:
        assert sp.budget == round(final + (total - final) * (1 - min(t / 20, 1)) ** 3)

    train(model, optimizer, 1, 40, watch)


@pytest.mark.parametrize("name", ["feather", "st3", "str"])
def test_a_ramp_without_length_is_one_cut(name: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, name, sparsity=0.9, total_steps=10, prune_start=0.5, prune_end=0.5)
    seen: list[int] = []
    train(model, optimizer, 1, 10, lambda _: seen.append(sp.budget))
    total, final = sp.groups[0].total, sp.groups[0].final
    assert seen[4:] == [final] * 6
    if name == "str":  # before the cut the count is what its thresholds make of it
        assert all(final < count < total for count in seen[:4])
    else:
        assert seen[:4] == [total] * 4


@pytest.mark.parametrize("name", ["feather", "st3", "str", "probmask"])
def test_the_ramp_begins_before_it_ends(name: str) -> None:
    model = cnn()
    with pytest.raises(ValueError, match=r"prune_start=0\.6 lies after prune_end=0\.5"):
        rp.attach(model, sgd(model), name, sparsity=0.9, total_steps=10, prune_start=0.6, prune_end=0.5)


def test_large_p_is_the_hard_threshold() -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.Feather(prune_end=1, p=60.0), 0.5, 10)
    line.step(0.0)
    assert line.weight.tolist() == pytest.approx([0.5, -0.4, 0.0, 0.0], abs=1e-6)


def test_what_is_reserved_passes_unshrunk() -> None:
    class Hold(rp.Extra):
        def reserve(self, group):  # type: ignore[no-untyped-def]
            return {layer: torch.tensor([[False, False, False, True]]) for layer in group.layers}

    model = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.4, 0.3, 0.1]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rp.attach(model, optimizer, rp.methods.Feather(prune_end=1), sparsity=0.5, total_steps=9, extras=[Hold()])
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert model.weight[0].tolist() == pytest.approx([(0.125 - 0.064) ** (1 / 3), 0.0, 0.0, 0.1])
