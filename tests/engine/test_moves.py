"""Moves as loops over strides: the same numbers at the same places, few loops, and no table where none is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _agree import agree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rankprune as rp
from rankprune.engine.graph import strided


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nests_are_the_index_they_describe(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    index = np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(0, 3))):
        kind = data.draw(st.sampled_from(["permute", "roll", "flip", "slice", "repeat"]))
        axis = data.draw(st.integers(0, index.ndim - 1))
        if kind == "permute":
            index = index.transpose(data.draw(st.permutations(range(index.ndim))))
        elif kind == "roll":
            index = np.roll(index, data.draw(st.integers(0, 3)), axis)
        elif kind == "flip":
            index = np.flip(index, axis)
        elif kind == "slice":
            index = index.take(range(0, index.shape[axis], data.draw(st.integers(1, 3))), axis)
        else:
            index = index.repeat(data.draw(st.integers(1, 3)), axis)
    flat = index.reshape(-1)
    try:
        nests = strided.describe(flat, np.arange(flat.size))
    except strided.Irregular:
        return
    rows = strided.to_array(nests)
    assert strided.sound(rows, int(np.prod(shape)), flat.size)
    np.testing.assert_array_equal(strided.expand(strided.from_array(rows), flat.size), flat)


def test_regular_moves_are_few_loops():
    grid = np.arange(56 * 56 * 96).reshape(56, 56, 96)
    windows = np.roll(grid, (-3, -3), (0, 1)).reshape(8, 7, 8, 7, 96).transpose(0, 2, 1, 3, 4).reshape(-1)
    assert len(strided.describe(windows, np.arange(windows.size))) <= 16
    assert len(strided.describe(grid.transpose(2, 0, 1).reshape(-1), np.arange(grid.size))) == 1
    with pytest.raises(strided.Irregular):
        strided.describe(np.random.default_rng(0).permutation(4096), np.arange(4096))


def test_nests_outside_of_their_values_are_refused():
    rows = strided.to_array(strided.describe(np.arange(24), np.arange(24)))
    assert [strided.sound(rows, *sizes) for sizes in ((24, 24), (23, 24), (24, 23))] == [True, False, False]
    for column, number in ((0, -1), (0, 1), (2, 0), (2, 25), (2, 1 << 62), (3, -1), (3, 1 << 62), (4, 2)):
        wrong = rows.copy()
        wrong[0, column] = number
        assert not strided.sound(wrong, 24, 24), (column, number)


class View(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.before = function, nn.Conv2d(3, 6, 1)

    def forward(self, x):
        return self.function(self.before(x))


INDEX = torch.tensor([3, 1, 1, 0, 5])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.roll(x, (2, -3), (2, 3)), lambda x: x.flip(1, 3),
        lambda x: torch.stack([x, x + 1], 2), lambda x: torch.stack([x[:, 0], x[:, 1]], -1),
        lambda x: x.index_select(1, INDEX), lambda x: x.repeat(1, 2, 1, 3), lambda x: x.repeat_interleave(2, 2),
        lambda x: F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2), lambda x: x[:, :, :1].expand_as(x) * 2,
        lambda x: F.pad(x, (1, 2, 0, 3)), lambda x: F.pad(x, (1, -2, 3, 1), value=0.5),
        lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"),
        lambda x: F.pad(x, (2, 1, 1, 2), mode="circular"), lambda x: x.flatten(2).transpose(1, 2),
        lambda x: x.transpose(1, 3), lambda x: x[:, ::2, 1::3], lambda x: x.movedim(1, -1),
        lambda x: x.reshape(x.shape[0], 2, -1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [(9, 11), (8, 16)])
def test_views(function, size):
    agree(View(function), 3, *size, batches=(1, 3, 8, 13))


def test_a_permutation_costs_no_table():
    """Tables of two 32-bit indices were kept for each number moved."""
    module = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Flatten(2)).eval()
    fast = rp.compile(module, torch.randn(1, 3, 60, 60), tune=False)
    assert fast.weight_bytes() < 16 * 60 * 60


def test_channels_last_layers_run_on_the_image_as_it_lies():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
            self.up, self.down, self.scale = nn.Linear(8, 32), nn.Linear(32, 8), nn.Parameter(torch.rand(8))

        def forward(self, x):
            y = self.down(F.gelu(self.up(self.norm(self.mix(x).permute(0, 2, 3, 1))))) * self.scale
            return x + y.permute(0, 3, 1, 2)

    for size, moves in (((16, 16), 0), ((13, 9), 2)):
        module = Block()
        agree(module, 8, *size, batches=(1, 3, 8, 13))
        fast = rp.compile(module.eval(), torch.randn(1, 8, *size), tune=False)
        natives = fast.program.natives
        assert [node.op for node in natives[0].engine.graph.nodes].count("gather") == moves, size
