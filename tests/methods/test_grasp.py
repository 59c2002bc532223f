"""GraSP: H g against a dense Hessian, the closed form of a quadratic, and invariance to the loss's scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, vit

CE = nn.functional.cross_entropy


def kept_of(scores: Tensor, count: int) -> Tensor:
    mask = torch.zeros(scores.numel(), dtype=torch.bool)
    mask[scores.flatten().sort(descending=True, stable=True).indices[:count]] = True
    return mask.view(scores.shape)


def test_against_the_dense_hessian_of_a_tiny_net() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 6).double(), torch.randint(0, 3, (12,))
    sizes = [30, 15]

    def loss(flat: Tensor) -> Tensor:
        first, second = flat.split(sizes)
        values = {**dict(model.named_parameters()), "0.weight": first.view(5, 6), "2.weight": second.view(3, 5)}
        return CE(torch.func.functional_call(model, values, (x,)) / 200.0, y)

    theta = torch.cat([model[0].weight.detach().flatten(), model[2].weight.detach().flatten()])
    hessian = torch.autograd.functional.hessian(loss, theta)
    grad = torch.autograd.functional.jacobian(loss, theta)
    score = -theta * (hessian @ grad)  # the largest are removed
    expected = kept_of(-score, 9)
    rp.prune(model, "grasp", sparsity=0.8, data=[(x, y)], loss_fn=CE)
    found = torch.cat([(model[0].weight != 0).flatten(), (model[2].weight != 0).flatten()])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("parts", [None, 1])
def test_two_halves_with_batch_statistics_of_their_own(parts: int | None) -> None:
    """By default as in the authors' code: g is the sum over the halves, and so is H g; BatchNorm is in train mode."""
    x, y = batch(3, torch.float64)
    model = cnn(dtype=torch.float64)
    weights = [p for p in model.parameters() if p.ndim > 1]
    pieces = [(x, y)] if parts == 1 else [(x[:4], y[:4]), (x[4:], y[4:])]

    def grads(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(CE(model(a) / 200.0, b), weights, create_graph=True)

    first = [sum(part).detach() for part in zip(*(grads(a, b) for a, b in pieces))]
    flows = [sum((g * h).sum() for g, h in zip(first, grads(a, b))) for a, b in pieces]
    second = [sum(part) for part in zip(*(torch.autograd.grad(flow, weights) for flow in flows))]
    score = torch.cat([(w * h).detach().flatten() for w, h in zip(weights, second)])
    method = rp.methods.GraSP() if parts is None else rp.methods.GraSP(parts=parts)
    net = cnn(dtype=torch.float64)
    rp.prune(net, method, sparsity=0.9, data=[(x, y)], loss_fn=CE)
    found = torch.cat([(p.detach() != 0).flatten() for p in net.parameters() if p.ndim > 1])
    assert torch.equal(found, kept_of(score, int(found.sum())))


def test_the_closed_form_of_a_quadratic() -> None:
    """L = ½ θᵀAθ has gradient Aθ and Hessian A: the score is -θ ∘ (A A θ)."""
    torch.manual_seed(1)
    root = torch.randn(20, 20, dtype=torch.float64)
    a = root @ root.T / 20
    model = nn.Linear(20, 1, bias=False).double()
    theta = model.weight.detach().clone().flatten()
    temperature = 3.0

    def loss(outputs: Tensor, _: Tensor) -> Tensor:  # the inputs are the unit matrix: outputs · temperature are θ
        theta = outputs.flatten() * temperature
        return theta @ a @ theta / 2

    data = [(torch.eye(20).double(), torch.zeros(20))]
    rp.prune(model, rp.methods.GraSP(temperature=temperature, parts=1), sparsity=0.7, data=data, loss_fn=loss)
    assert torch.equal((model.weight != 0).flatten(), kept_of(theta * (a @ (a @ theta)), 6))


def test_scaling_the_loss_changes_nothing() -> None:
    def masks(scale: float) -> list[Tensor]:
        model = cnn()
        rp.prune(model, "grasp", sparsity=0.9, data=[batch(1)], loss_fn=lambda o, t: scale * CE(o, t))
        return [p.detach() != 0 for p in model.parameters() if p.ndim > 1]

    assert all(torch.equal(a, b) for a, b in zip(masks(1.0), masks(4096.0)))


def test_batchnorm_is_in_train_mode() -> None:
    """At the start running statistics mean nothing: what they are makes no difference."""

    def masks(mean: float) -> list[Tensor]:
        model = cnn()
        model[1].running_mean.fill_(mean)
        rp.prune(model, "grasp", sparsity=0.9, data=[batch(1)], loss_fn=CE)
        return [p.detach() != 0 for p in model.parameters() if p.ndim > 1]

    assert all(torch.equal(a, b) for a, b in zip(masks(0.0), masks(5.0)))


def test_attention_has_a_second_derivative() -> None:
    """The fused attention kernels have none; the exact count shows that the plain ones were taken."""
    model = vit()
    report = rp.prune(model, "grasp", sparsity=0.9, data=[batch(1)], loss_fn=CE)
    assert report.kept == round(0.1 * report.total)
