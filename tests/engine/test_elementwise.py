"""Activations and broadcasting sums, products and the like against torch, one operator at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from _agree import agree
from torch import nn

import rankprune as rp


class Call(nn.Module):
    """A function as a module, with a convolution before it: the engine has a layer to run."""

    def __init__(self, function, channels: int = 5) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(3, channels, 1)

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    "function",
    [
        F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.gelu, F.silu, F.mish, F.elu, F.selu, F.softplus, F.hardtanh,
        torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.neg, torch.square,
        lambda x: F.gelu(x, approximate="tanh"), lambda x: F.leaky_relu(x, 0.2), lambda x: F.elu(x, 0.7),
        lambda x: F.celu(x, 1.7), lambda x: F.softplus(x, 2.5, 3.0), lambda x: x.clamp(-0.3, 0.9),
        lambda x: x.clamp(min=0.1), lambda x: x.clamp_max(0.2), lambda x: (x.abs() + 0.1).sqrt(),
        lambda x: (x.abs() + 0.1).rsqrt(), lambda x: x**3, lambda x: (x.abs() + 1).reciprocal(),
        lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, -0.4, 0.5])), lambda x: F.prelu(x, torch.tensor([0.25])),
    ],
)  # fmt: skip
def test_activations(function):
    agree(Call(function), 3, 7, 9)


@pytest.mark.parametrize("function", [torch.tanh, F.elu, F.mish, F.softplus, torch.sigmoid])
def test_activations_keep_their_precision_near_zero(function):
    module = Call(lambda x: function(x) - function(torch.zeros(())))
    module.conv.bias.data.zero_()
    torch.manual_seed(0)
    x = 1e-3 * torch.randn(1, 3, 5, 5)
    fast = rp.compile(module.eval(), x, tune=False)
    with torch.no_grad():
        want = module(x)
    atol = 2e-7 if function in (F.softplus, torch.sigmoid) else 1e-9  # those two are 1e-7 of 0.7 and 0.5 in torch too
    torch.testing.assert_close(fast(x), want, rtol=2e-5, atol=atol)


def test_activations_at_the_ends_of_their_range():
    x = torch.tensor([-1e30, -200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 200.0, 1e30]).view(1, 1, 1, 9)
    for function in (torch.tanh, F.elu, F.softplus, F.mish, lambda v: F.leaky_relu(v, 0.1), lambda v: v.clamp(-3, 2)):
        module = Call(function, 1)
        module.conv = nn.Conv2d(1, 1, 1)
        module.conv.weight.data.fill_(1)
        module.conv.bias.data.zero_()
        with torch.no_grad():
            torch.testing.assert_close(rp.compile(module.eval(), x, tune=False)(x), module(x), rtol=1e-5, atol=1e-6)


GATES = [F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.hardswish, torch.sigmoid, torch.exp]


@pytest.mark.parametrize("function", GATES)
def test_activations_at_infinity(function):
    """Infinite where torch is, NaN at -inf where torch multiplies it by 0, and -0 for large negative numbers."""
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([inf, -inf, nan, 1e30, -1e30, -3e38, -1e3, -90.0, -6.0, 90.0, 0.0]).view(1, 1, 1, 11)
    module = Call(function, 1)
    module.conv = nn.Conv2d(1, 1, 1)
    module.conv.weight.data.fill_(1)
    module.conv.bias.data.zero_()
    fast = rp.compile(module.eval(), torch.randn(1, 1, 1, 11), tune=False)
    assert fast.islands == ()
    with torch.no_grad():  # one by one: torch's vectorised GELU has NaN at +inf where its scalar one has inf
        want = torch.cat([module(part) for part in x.split(1, dim=3)], dim=3)
    torch.testing.assert_close(fast(x), want, rtol=1e-5, atol=1e-6, equal_nan=True)


MADE = {
    shape: torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    for shape in ((9,), (5, 1, 1), (7, 1), (5, 7, 9), (5,), (315,), (4, 1, 1))
}


def random(*shape):
    return MADE[shape]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.mean((2, 3), keepdim=True), lambda x: x.mean((2, 3), keepdim=True) - x,
        lambda x: x / (1 + x[:, :1].abs()), lambda x: x[:, :, :1] + x, lambda x: x - x[..., 2:3],
        lambda x: x[:, :1] / (2 + x.abs()), lambda x: x[:, :, :1] * x[..., 3:4], lambda x: torch.maximum(x, x[:, 1:2]),
        lambda x: torch.minimum(x[..., :1], x), lambda x: 1 - x, lambda x: 2 / (3 + x * x), lambda x: x + random(9),
        lambda x: x * random(5, 1, 1), lambda x: random(7, 1) - x, lambda x: random(5, 7, 9) / (1 + x.abs()),
        lambda x: torch.add(x, x[:, :1], alpha=0.5), lambda x: torch.sub(x, random(9), alpha=2),
        lambda x: torch.rsub(x, 3.0), lambda x: x.permute(0, 2, 3, 1) * random(5), lambda x: x.flatten(1) + random(315),
        lambda x: x.flatten(2).transpose(1, 2) * x[:, :, 0, 0].unsqueeze(1), lambda x: x.flatten(2) - x[:, :, 0, :1],
        lambda x: (x.unsqueeze(2) * random(4, 1, 1)).flatten(1, 2),
    ],
)  # fmt: skip
def test_broadcasts(function):
    agree(Call(function), 3, 7, 9)


def test_an_activation_behind_a_permutation_moves_nothing():
    module = Call(lambda x: F.mish(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)).eval()
    fast = rp.compile(module, torch.randn(1, 3, 8, 8), tune=False)
    assert [node.op for node in fast.program.natives[0].engine.graph.nodes] == ["conv"]


def test_a_batch_norm_over_the_tokens_of_all_images():
    """As LeViT has it: the batch is a part of the first axis, and the norm folds into the layer before."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 6), nn.BatchNorm1d(6)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

        def forward(self, x):
            x = self.linear(x.flatten(2).transpose(1, 2))
            return self.norm(x.flatten(0, 1)).reshape_as(x).type_as(x)

    agree(Net(), 3, 5, 7)
    fast = rp.compile(Net().eval(), torch.randn(1, 3, 5, 7), tune=False)
    assert "mul" not in [node.op for node in fast.program.natives[0].engine.graph.nodes]
