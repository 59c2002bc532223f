"""Top-KAST: sets A within B, what rests outside B, the penalty that makes exploration earn its place."""

from __future__ import annotations

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import adamw, cnn, sgd, train

VALUES = [0.8, -0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]


def test_forward_and_backward_sets_by_hand() -> None:
    """A = 2 of 8, B = 4 of 8, from the start."""
    line = Line(VALUES, rp.methods.TopKAST(penalty=0.0), 0.75, 10)
    assert line.mask == [0, 1]
    assert line.weight.tolist() == pytest.approx([0.8, -0.7] + [0.0] * 6)
    assert line.layer.state["trained"][0].tolist() == [True] * 4 + [False] * 4
    line.step([1.0, 1.0, -2.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert line.layer.state["latent"][0].tolist() == pytest.approx([0.7, -0.8, 0.85, 0.4, 0.4, 0.3, 0.2, 0.1])
    assert line.mask == [1, 2]  # what explored has earned its place


@pytest.mark.parametrize("make", [sgd, adamw])
def test_outside_b_nothing_moves(make: object) -> None:
    model = cnn()
    optimizer = make(model)  # type: ignore[operator]
    sp = rp.attach(model, optimizer, "topkast", sparsity=0.9, total_steps=20)
    for t in range(1, 11):
        before = [(s.state["latent"].clone(), s.state.get("trained", torch.tensor(True)).clone()) for s in sp.layers]
        train(model, optimizer, t, t)
        for layer, (latent, trained) in zip(sp.layers, before):
            rest = ~trained.expand_as(latent)
            assert torch.equal(layer.state["latent"][rest], latent[rest])
            assert not bool((layer.mask & ~layer.state.get("trained", layer.mask)).any())  # A within B
            assert all(t[rest].count_nonzero() == 0 for t in layer.optimizer_state())


def test_penalty_on_a_and_on_the_rest_of_b() -> None:
    line = Line(VALUES, rp.methods.TopKAST(penalty=0.01), 0.75, 10)
    line.step(0.0)
    moved = torch.tensor(VALUES) - line.layer.state["latent"][0]
    expected = [v * 0.1 * 0.01 * w for v, w in zip(VALUES, [1, 1, 4, 4, 0, 0, 0, 0])]
    assert moved.tolist() == pytest.approx(expected, abs=1e-7)
    absolute = Line(VALUES, rp.methods.TopKAST(penalty=0.01, norm=1), 0.75, 10)
    absolute.step(0.0)
    moved = torch.tensor(VALUES) - absolute.layer.state["latent"][0]
    assert moved.tolist() == pytest.approx([0.001, -0.001, 0.004, 0.004, 0, 0, 0, 0], abs=1e-7)


def test_the_gradient_beside_a_is_the_dense_one_of_the_sparse_net() -> None:
    model, twin = cnn(), cnn()
    optimizer = sgd(model, momentum=0.0, weight_decay=0.0)
    sp = rp.attach(model, optimizer, "topkast", sparsity=0.9, total_steps=20, backward_sparsity=0.0, penalty=0.0)
    twin.load_state_dict(model.state_dict())  # holds the sparse weights
    before = [s.state["latent"].clone() for s in sp.layers]
    train(model, optimizer, 1, 1)
    other = sgd(twin, momentum=0.0, weight_decay=0.0)
    old = {n: p.detach().clone() for n, p in twin.named_parameters()}
    train(twin, other, 1, 1)
    for layer, latent in zip(sp.layers, before):
        assert layer.state.get("trained") is None
        change = dict(twin.named_parameters())[layer.name].detach() - old[layer.name]
        assert torch.allclose(layer.state["latent"] - latent, change, atol=1e-6)


def test_b_must_hold_a() -> None:
    with pytest.raises(ValueError, match="backward_sparsity=0.9 is above sparsity=0.75".replace(".", r"\.")):
        Line(VALUES, rp.methods.TopKAST(backward_sparsity=0.9), 0.75, 10)


def test_a_layer_that_enters_b_as_a_whole_is_trained_as_a_whole() -> None:
    """With one threshold for all layers their parts of B move: here the first outgrows the second."""
    model = nn.Sequential(nn.Linear(10, 1, bias=False), nn.Linear(1, 30, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(0.1, 0.3, 10)[None])
        model[1].weight.copy_(torch.linspace(0.01, 0.5, 30)[:, None])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    method = rp.methods.TopKAST(distribution="global", backward_sparsity=0.5, penalty=0.0)
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=10)
    assert not bool(sp.layers[0].state["trained"].all())
    with torch.no_grad():
        sp.layers[0].state["latent"].add_(1.0)
    for pull in (0.0, -1.0):  # the first step makes the sets anew, the second trains them
        before = sp.layers[0].state["latent"].clone()
        model[0].weight.grad = torch.full((1, 10), pull)
        model[1].weight.grad = torch.zeros(30, 1)
        optimizer.step()
    assert torch.allclose(sp.layers[0].state["latent"], before + 1.0)
