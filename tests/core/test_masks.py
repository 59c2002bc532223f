"""Operations with masks, against the plain torch operations that they replace."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rankprune as rp
from rankprune.core import masks
from rankprune.core.select import keep_largest


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 9), st.integers(0, 10_000))
def test_positions_are_those_of_nonzero(size: int, density: float, offset: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(size + offset, generator=generator) < density)[offset:]  # words may begin within a word
    assert torch.equal(masks.positions(mask), mask.nonzero().view(-1))
    assert masks.count(mask) == int(mask.sum())


def test_above_takes_nan_and_infinity_as_large() -> None:
    values = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 1e-45, 1.0, torch.inf, torch.nan])
    assert masks.above(values, 0.0).tolist() == [False] * 4 + [True] * 4
    assert masks.above(values, torch.inf).tolist() == [False] * 7 + [True]


@pytest.mark.parametrize(
    "values",
    [torch.randn(3, 4), channels_last(4, 5, 3, 3), torch.randn(5, 4).t(), torch.randn(6, 8)[:, ::2], torch.tensor(2.0)],
)
def test_memory_order_has_every_entry_once(values: torch.Tensor) -> None:
    flat = masks.in_memory_order(values)
    assert flat.shape == (values.numel(),)
    assert torch.equal(flat.sort().values, values.reshape(-1).sort().values)
    if values.dim() == 4:
        assert flat.data_ptr() == values.data_ptr()  # a view, not a copy


@given(st.integers(0, 60), st.integers(0, 1000))
def test_ties_go_by_flat_index_in_any_memory_format(count: int, seed: int) -> None:
    scores = torch.randint(0, 3, (3, 5, 2, 2), generator=torch.Generator().manual_seed(seed)).float()
    expected = keep_largest(scores, count)
    assert torch.equal(keep_largest(scores.to(memory_format=torch.channels_last), count), expected)
    order = torch.sort(scores.reshape(-1), descending=True, stable=True).indices[:count]
    assert torch.equal(expected.reshape(-1).nonzero().view(-1), order.sort().values)


@pytest.mark.parametrize("density", [0.05, 0.9])
@pytest.mark.parametrize("mixed", [False, True])
def test_copy_and_fill_of_what_is_kept(density: float, mixed: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(6, 8, 3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (layer,) = rp.attach(model, optimizer, "random", sparsity=1 - density, total_steps=10).layers
    target, source = channels_last(8, 6, 3, 3), torch.randn(8, 6, 3, 3) if mixed else channels_last(8, 6, 3, 3)
    assert torch.equal(layer.copy_kept(target.clone(), source), torch.where(layer.mask, source, target))
    assert torch.equal(layer.fill_kept(target.clone(), -torch.inf), target.masked_fill(layer.mask, -torch.inf))
    layer.mask.logical_not_()  # positions follow the mask
    assert torch.equal(layer.copy_kept(target.clone(), source), torch.where(layer.mask, source, target))


def test_feather_in_channels_last_equals_feather() -> None:
    """The same latents and masks, bit by bit, from the same gradients; weights up to the rounding of pow()."""

    def train(memory_format: torch.memory_format) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.Conv2d(16, 16, 3)).to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sp = rp.attach(model, optimizer, "feather", sparsity=0.97, total_steps=20)
        for step in range(20):
            generator = torch.Generator().manual_seed(step)
            for p in model.parameters():
                grad = torch.randn(p.shape, generator=generator)
                p.grad = grad.to(memory_format=memory_format) if p.dim() == 4 else grad
            optimizer.step()
        assert all(layer.weight.is_contiguous(memory_format=memory_format) for layer in sp.layers)
        return [t for layer in sp.layers for t in (layer.state["latent"], layer.mask, layer.weight)]

    plain, last = train(torch.contiguous_format), train(torch.channels_last)
    for i, (a, b) in enumerate(zip(plain, last, strict=True)):
        if i % 3 < 2:
            assert torch.equal(a, b)
        else:  # vectors and the rest of them differ in their last bit
            torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
