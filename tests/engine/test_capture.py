"""What capture makes of small modules: the numbers of torch for any batch size, or a refusal in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rankprune as rp
from rankprune.engine import runtime
from rankprune.engine.compile import Compiled
from rankprune.engine.frontend.functional import functional


class Does(nn.Module):
    """A convolution (or another layer), and what a function of the module and the input does with it."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.does, self.layer = forward, layer or nn.Conv2d(3, 6, 3)
        self.register_buffer("table", torch.linspace(-1, 1, 12))

    def forward(self, x: Tensor) -> Any:
        return self.does(self, x)


def net(forward: Callable[[Any, Tensor], Any], layer: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return Does(forward, layer).eval()


def agree(
    model: nn.Module, shape: tuple[int, ...] = (3, 7, 9), batches: tuple[int, ...] = (1, 3, 9), bound: float = 1e-5
) -> Compiled:
    """Outputs of torch, to the shape and the type, for batches of several sizes."""
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    fast = rp.compile(model, example, threads=1, tune=False)
    for n in batches:
        x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))
        with torch.no_grad():
            want, got = model(x.clone()), fast(x.clone())
        assert type(want) is type(got)
        for a, b in zip(want, got) if isinstance(want, tuple) else [(want, got)]:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert (a - b).abs().max() <= bound * a.abs().max()
    return fast


def refused(model: nn.Module, words: str, shape: tuple[int, ...] = (3, 7, 9)) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        rp.compile(model, torch.zeros(1, *shape), threads=1, tune=False)
    assert "\n" not in str(raised.value)


def changed_copy(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    z = y.clone()
    z += 1
    z.relu_()
    return y * z


def changed_contiguous(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x).permute(0, 2, 3, 1)
    z = y.contiguous()  # a copy here, and y itself where it is contiguous already
    z += 1
    return y * z


def changed_alias(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    z = y.contiguous()
    z += 1
    return y * z


def changed_copy_by_torch(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    return F.leaky_relu_(y.clone(), 0.1) * y


def changed_twice(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    y += y.mean((2, 3), keepdim=True)
    y.relu_()
    return y * 2


def read_between(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    y += 1
    z = y.flatten(2)  # changes with y
    y.relu_()
    return z * 2


@pytest.mark.parametrize(
    "forward",
    [changed_copy, changed_contiguous, changed_alias, changed_copy_by_torch, changed_twice, read_between],
)
def test_operators_in_place_change_their_own_memory_only(forward):
    agree(net(forward))


def test_a_residual_block_is_not_traced_twice():
    exported = torch.export.export(net(changed_twice), (torch.zeros(2, 3, 7, 9),))
    assert functional(exported) is exported


def test_the_input_is_not_changed():
    fast = agree(net(lambda module, x: F.elu_(x.clone()) + x))
    x = torch.randn(2, 3, 7, 9)
    before = x.clone()
    fast(x)
    assert torch.equal(x, before)


def changed_view(module: Any, x: Tensor) -> Tensor:
    y = module.layer(x)
    y.movedim(1, 2).mul_(3)
    return y


def filled_in(module: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 5, 7, 9)
    y[:, 1:4] = x
    return module.layer(y[:, 1:4]) + y.mean()


@pytest.mark.parametrize("forward", [changed_view, filled_in])
def test_a_view_that_is_written_to(forward):
    agree(net(forward))


def counted(module: Any, x: Tensor) -> Tensor:
    module.table.add_(1)
    return x * module.table[0]


def test_a_module_that_changes_itself_is_refused_and_not_changed():
    model = net(counted)
    before = model.table.clone()
    refused(model, r"aten\.add_\.Tensor: it changes table, a tensor of the module itself")
    assert torch.equal(model.table, before)


@pytest.mark.parametrize(
    "forward",
    [
        lambda module, x: module.layer(x) * x.shape[0],
        lambda module, x: module.layer(x) / x.shape[0],
        lambda module, x: module.layer(x) + x.shape[0],
        lambda module, x: module.layer(x) * (torch.ones(x.shape[0], 1, 1, 1) * x.shape[0]),
        lambda module, x: torch.maximum(module.layer(x), module.table[:6].view(1, 6, 1, 1).expand(x.shape[0], 6, 1, 1)),
    ],
)
def test_numbers_that_follow_the_batch_size(forward):
    agree(net(forward))


def masked(module: Any, x: Tensor) -> Tensor:
    """A constant written piece by piece, as Swin writes its masks."""
    mask = x.new_zeros((5, 7))
    mask[1:3] = 1
    mask[:, 2] += 3
    return module.layer(x) + mask


def test_constants_that_take_their_type_from_the_input():
    assert agree(net(masked)).islands == ()


@pytest.mark.parametrize(
    "forward",
    [
        lambda module, x: module.layer(x).int().float(),
        lambda module, x: module.layer(x).double(),
        lambda module, x: module.layer(x) * x.mean((1, 2, 3), keepdim=True).bool(),
    ],
)
def test_other_types_are_left_to_torch(forward):
    fast = agree(net(forward))
    assert fast.islands
    assert "aten.conv2d.default" not in fast.islands


def test_a_type_that_is_float32_already_is_nothing():
    assert agree(net(lambda module, x: module.layer(x.float()).to(torch.float32))).islands == ()


def reordered(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    y = module.layer(x)
    return F.relu(y).mean((2, 3)), y, x, y


def test_a_plan_gives_the_outputs_of_the_module_in_their_order(tmp_path):
    fast = agree(net(reordered))
    fast.save(tmp_path / "net.plan")
    x = torch.randn(3, 3, 7, 9)
    got = runtime.load(tmp_path / "net.plan")(x.numpy())
    assert len(got) == 4
    for a, b in zip(got, fast(x)):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("forward", "layer", "shape"),
    [
        (lambda module, x: x, None, (3, 7, 9)),
        (lambda module, x: module.layer(x)[:, 0], nn.Linear(5, 3), (5,)),
        (lambda module, x: module.layer(x).squeeze(1) * 2 + 1, nn.Linear(5, 1), (5,)),
        (lambda module, x: module.layer(x), nn.LayerNorm(5, eps=0.0), (4, 5)),
        (lambda module, x: module.layer(x), nn.Linear(5, 3), (2, 3, 4, 5)),
    ],
)
def test_what_is_saved_can_be_loaded(forward, layer, shape, tmp_path):
    fast = agree(net(forward, layer), shape)
    fast.save(tmp_path / "net.plan")
    x = torch.randn(9, *shape)
    np.testing.assert_allclose(runtime.load(tmp_path / "net.plan")(x.numpy()), fast(x).numpy(), rtol=1e-6)


def test_a_constant_that_makes_the_tensor_larger():
    agree(net(lambda module, x: x.unsqueeze(1) + module.table.view(1, 4, 3)), (3,))
    agree(net(lambda module, x: module.table.view(1, 12, 1) * x[:, None]), (5,))


@pytest.mark.parametrize("shape", [(5, 12), (2, 12), (4, 12)])  # as many tokens as images, too
def test_the_encoders_of_torch_run_without_islands(shape):
    """nn.MultiheadAttention puts the tokens of all images on one axis, tokens first."""
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    assert agree(net(lambda module, x: module.layer(x, x, x, need_weights=False)[0], attention), shape).islands == ()
    encoder = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=True, activation="gelu")
    assert agree(net(lambda module, x: module.layer(x), encoder), shape).islands == ()


def windows(module: Any, x: Tensor) -> Tensor:
    """Attention with a bias inside windows, which stand beside the images of the batch on one axis."""
    parts = x.reshape(x.shape[0], 3, 2, 5, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)
    q, k, v = module.layer(parts).chunk(3, -1)
    y = (q @ k.transpose(1, 2) + module.table[:4]).softmax(-1) @ v
    return y.reshape(-1, 3, 5, 2, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(x.shape[0], 6, 10, 4)


def test_windows_of_all_images_on_one_axis():
    assert "aten.linear.default" not in agree(net(windows, nn.Linear(4, 12)), (6, 10, 4)).islands


def test_products_by_a_constant_matrix_are_linear_layers():
    model = net(lambda module, x: torch.addmm(module.table[:4], x @ module.layer.weight.T, module.layer.weight))
    model.layer = nn.Linear(4, 3)
    assert agree(model, (4,)).islands == ()
    model = net(lambda module, x: x @ module.layer.weight.T, nn.Linear(4, 3))
    assert agree(model, (6, 4)).islands == ()


def token_major(module: Any, x: Tensor) -> Tensor:
    """The images' rows taken one after the other, as if they stood side by side: (batch · 6) seen as (6, batch)."""
    y = module.layer(x.reshape(-1, 4)).reshape(6, x.shape[0], 4)
    return F.softplus(module.layer(module.layer(y)))


def test_a_view_that_mixes_images_though_two_look_sound():
    agree(net(token_major, nn.Linear(4, 4)), (6, 4), (1, 2, 3, 6))


def test_an_island_with_the_batch_in_the_middle():
    assert agree(net(lambda module, x: torch.cumsum(x.transpose(0, 1), 0).transpose(0, 1)), (5, 4)).islands


@pytest.mark.parametrize(
    "forward",
    [
        lambda module, x: module.layer(x).transpose(0, 1),
        lambda module, x: module.layer(x)[:1],
        lambda module, x: module.layer(x).flatten(),
        lambda module, x: module.layer(torch.cat([x, 2 * x]))[: x.shape[0]],
    ],
)
def test_outputs_that_do_not_begin_with_the_batch(forward):
    assert "aten.conv2d.default" not in agree(net(forward)).islands[:1]


@pytest.mark.parametrize(
    "forward",
    [
        lambda module, x: module.layer(x - x.mean(0)),
        lambda module, x: F.conv2d(x, x[:1, :, :3, :3]),
        lambda module, x: module.layer(x).flip(0) - module.layer(x).cumsum(0),
        lambda module, x: (lambda y: y @ y.mT)(module.layer(x).flatten(1)),
    ],
)
def test_what_mixes_images_is_left_to_torch(forward):
    assert agree(net(forward)).islands


def wrapped(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        y = module.layer(x)
        with torch.autocast("cpu", enabled=False):
            z = F.relu(y.float())
    return z * 2 + module.layer(x), y


def test_stretches_under_autocast_or_grad_are_part_of_the_graph():
    assert agree(net(wrapped)).islands == ()


def halved(module: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return module.layer(x).float()


def test_half_precision_inside_the_module_is_left_to_torch():
    """Numbers that differ in the last bit of a float32 may be rounded apart: by one step of the type, no more."""
    assert "aten.conv2d.default" in agree(net(halved)).islands
    assert agree(net(lambda module, x: module.layer(x).half().float()), bound=2**-10).islands


def branches(module: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (module.layer(x),))


def test_branches_are_left_to_torch():
    assert "aten.conv2d.default" not in agree(net(branches)).islands


def silent(module: Any, x: Tensor) -> Tensor:
    raise AssertionError


def test_a_failure_without_words_has_a_name():
    refused(net(silent), "Does does not run on the example: AssertionError without a message")


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv2d(256, 4, 3, groups=2), (256, 224, 3)), (nn.Conv2d(1, 2, 3, padding=1), (1, 40000, 3))],
)
def test_convolutions_beyond_16_bit_offsets_are_left_to_torch(layer, shape):
    assert agree(net(lambda module, x: F.relu(module.layer(x)), layer), shape, (1,)).islands == ("aten.conv2d.default",)
