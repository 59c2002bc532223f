from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankprune.core import masks
from rankprune.core.select import keep_largest, select


def brute(tensors: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """By a stable sort of the concatenation."""
    flat = torch.cat([t.reshape(-1).double() for t in tensors])
    mask = torch.zeros(flat.numel(), dtype=torch.bool)
    mask[torch.argsort(-flat, stable=True)[:count]] = True
    return [m.view(t.shape) for m, t in zip(mask.split([t.numel() for t in tensors]), tensors)]


# A coarse grid makes many ties; wide floats cover signs, subnormals and infinities.
entries = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False, width=32))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
def test_selection_is_that_of_a_stable_sort(data: st.DataObject, dtype: torch.dtype) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3))
    tensors = [torch.from_numpy(data.draw(hnp.arrays("float32", s, elements=entries))).to(dtype) for s in shapes]
    total = sum(t.numel() for t in tensors)
    count = data.draw(st.integers(0, total))
    cut = select(tensors, count, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    expected = brute(tensors, count)
    assert cut.counts == [int(m.sum()) for m in expected]
    assert cut.spent == count
    for tensor, n, mask in zip(tensors, cut.counts, expected):
        kept = tensor.clone()
        assert torch.equal(keep_largest(tensor, n), mask)
        guess = data.draw(st.sampled_from([cut.value, 0.0, 1.0]))  # right or wrong, it changes nothing
        assert torch.equal(keep_largest(tensor, n, guess=guess), mask)
        assert torch.equal(tensor, kept)  # a tensor given as such is not consumed


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_cut_of_the_step_before_changes_nothing_but_time(data: st.DataObject) -> None:
    """Right, wrong, of another sign or 0; and what is collected on the way is the selection itself."""
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=3))
    tensors = [torch.from_numpy(data.draw(hnp.arrays("float32", s, elements=entries))) for s in shapes]
    count = data.draw(st.integers(1, sum(t.numel() for t in tensors)))
    plain = select(tensors, count)
    near = data.draw(st.sampled_from([plain.value, 0.999 * plain.value, -plain.value, 0.0, 1.0, 1e30]))
    cut = select(tensors, count, near=near, collect=True)
    assert (cut.counts, cut.spent, cut.value) == (plain.counts, plain.spent, plain.value)
    expected = brute(tensors, count)
    out = torch.cat([t[~m] for t, m in zip(tensors, expected)])
    for below in (cut.below, plain.below):
        assert below is None or below == float(out.max())
    for chosen, mask in zip(cut.chosen, expected):
        if chosen is not None:
            assert chosen.positions.tolist() == mask.flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_selection_of_few_is_collected_in_memory_order(layout: torch.memory_format) -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(64, 32, 3, 3, generator=draw).to(memory_format=layout) for _ in range(2)]
    start = select(tensors, 1000, collect=True)
    cut = select([1.001 * t for t in tensors], 1000, near=start.value, collect=True)
    assert cut.below is not None
    for tensor, mask, chosen in zip(tensors, brute(tensors, 1000), cut.chosen):
        assert chosen is not None
        assert chosen.stride == tensor.stride()
        again = torch.zeros_like(mask, memory_format=layout)
        masks.in_memory_order(again)[chosen.positions] = True
        assert torch.equal(again, mask)


def test_ties_go_by_order_then_index() -> None:
    zeros = [torch.zeros(3), torch.zeros(4)]
    assert select(zeros, 5).counts == [3, 2]
    assert keep_largest(torch.zeros(2, 2), 3).tolist() == [[True, True], [True, False]]
    assert keep_largest(torch.tensor([-0.0, 0.0, -1.0]), 1).tolist() == [True, False, False]


def test_costs() -> None:
    """Greedy by score: 9 and 8 cost 3 each, 7 and 6 cost 1 each."""
    scores = [torch.tensor([9.0, 8.0, 1.0]), torch.tensor([7.0, 6.0])]
    assert select(scores, 7, [3, 1]).counts == [2, 1]
    assert select(scores, 8, [3, 1]).counts == [2, 2]
    assert select(scores, 10, [3, 1]).counts == [2, 2]
    assert select(scores, 11, [3, 1]).counts == [3, 2]
    assert select(scores, 2, [3, 1]).spent <= 2


@pytest.mark.parametrize("count", [0, 1, 300_000, 600_000])
def test_more_than_one_chunk(count: int) -> None:
    score = torch.rand(600_000, generator=torch.Generator().manual_seed(1)).round(decimals=3)
    assert torch.equal(keep_largest(lambda: score.clone(), count), brute([score], count)[0])


class Alone:
    """The shards of a tensor that lies on one rank: no sample is taken then."""

    def sum(self, counts: torch.Tensor) -> torch.Tensor:
        return counts

    def before(self, count: int) -> int:
        return 0


def spread(kind: str, seed: int) -> list[torch.Tensor]:
    """Scores for which a guess from a sample is good, useless, or within a long tie."""
    draw = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=draw) for n in (40_000, 61, 150_000, 7)]
    if kind == "missed":  # what is large lies where the sample does not look
        for t in tensors:
            t[torch.arange(len(t)) % 61 == 0] = -9.0
    elif kind == "only the sample":
        for t in tensors:
            t[torch.arange(len(t)) % 61 == 0] += 9.0
    elif kind == "masked":  # as pruned weights are
        for t in tensors:
            t[torch.rand(len(t), generator=draw) < 0.97] = -torch.inf
    elif kind == "ties":
        tensors = [t.round() for t in tensors]
    return tensors


@pytest.mark.parametrize("kind", ["smooth", "missed", "only the sample", "masked", "ties"])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.029, 0.03, 0.5, 0.97, 0.9999, 1.0])
def test_a_sample_changes_nothing(kind: str, share: float) -> None:
    tensors = spread(kind, seed=3)
    count = round(share * sum(map(len, tensors)))
    expected = brute(tensors, count)
    cuts = [select(tensors, count), select(tensors, count, shards=[Alone()] * len(tensors))]
    assert [c.counts for c in cuts] == [[int(m.sum()) for m in expected]] * 2
    assert [c.spent for c in cuts] == [count] * 2
    for tensor, n, mask in zip(tensors, cuts[0].counts, expected):
        assert torch.equal(keep_largest(tensor, n), mask)
