from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankprune.core.budget import at_least_one, kept, largest_remainder, layer_counts, layer_densities

shapes_of = st.lists(
    st.one_of(st.tuples(st.integers(1, 40), st.integers(1, 40)),
              st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.integers(1, 3))),
    min_size=1, max_size=8,
)  # fmt: skip


def test_half_goes_to_even() -> None:
    assert [kept(n, 0.5) for n in (1, 3, 5, 7)] == [0, 2, 2, 4]
    assert kept(1000, 0.98) == 20
    assert [kept(n, 0.99) for n in (50, 150, 250, 350)] == [0, 2, 2, 4]  # in floats 250 · (1 - 0.99) is above 2.5


@settings(max_examples=200, deadline=None)
@given(shapes_of, st.floats(0.0, 1.0), st.sampled_from(["uniform", "er", "erk"]))
def test_counts_sum_and_fit(shapes: list[tuple[int, ...]], share: float, distribution: str) -> None:
    sizes = [math.prod(s) for s in shapes]
    total = max(len(shapes), round(share * sum(sizes)))
    counts = layer_counts(shapes, total, distribution)
    assert sum(counts) == total
    assert all(1 <= c <= n for c, n in zip(counts, sizes))


@settings(max_examples=100, deadline=None)
@given(shapes_of, st.floats(0.01, 0.99))
def test_erk_spends_all_and_no_layer_exceeds_one(shapes: list[tuple[int, ...]], sparsity: float) -> None:
    densities = layer_densities(shapes, sparsity, "erk")
    sizes = [math.prod(s) for s in shapes]
    assert all(0 < d <= 1 + 1e-12 for d in densities)
    assert sum(d * n for d, n in zip(densities, sizes)) == pytest.approx((1 - sparsity) * sum(sizes), rel=1e-9)


def test_erk_by_hand() -> None:
    """Two layers (4, 4) and (8, 8): raw 1/2 and 1/4, so the first has twice the density of the second."""
    first, second = layer_densities([(4, 4), (8, 8)], 0.8, "erk")
    assert first == pytest.approx(2 * second)
    assert 16 * first + 64 * second == pytest.approx(0.2 * 80)
    # At 20 % sparsity the first would need more than 1: it is dense, the second takes the rest.
    assert layer_densities([(4, 4), (8, 8)], 0.2, "erk") == [1.0, pytest.approx((0.8 * 80 - 16) / 64)]


def test_uniform_with_a_dense_first_layer_by_hand() -> None:
    """Of 16 + 64 + 80 weights 40 stay: all 16 of the first layer, and a sixth of each of the others."""
    shapes = [(4, 4), (8, 8), (8, 10)]
    assert layer_densities(shapes, 0.75, "uniform_dense_first") == pytest.approx([1.0, 24 / 144, 24 / 144])
    assert layer_counts(shapes, 40, "uniform_dense_first") == [16, 11, 13]
    with pytest.raises(ValueError, match="not enough for a dense first layer of 16"):
        layer_counts(shapes, 17, "uniform_dense_first")
    assert layer_counts([(4, 4)], 3, "uniform_dense_first") == [3]  # nothing else could be cut


def test_largest_remainder_by_hand() -> None:
    assert largest_remainder([1.5, 2.3, 0.2], 4, [9, 9, 9]) == [2, 2, 0]
    assert largest_remainder([0.5, 0.5, 1.0], 2, [9, 9, 9]) == [1, 0, 1]  # a tie goes to the earlier one
    assert largest_remainder([3.0, 1.0], 5, [3, 9]) == [3, 2]
    with pytest.raises(ValueError, match="do not fit"):
        largest_remainder([1.0, 1.0], 9, [2, 2])


def test_an_empty_layer_takes_from_the_largest() -> None:
    assert at_least_one([0, 5, 7, 0]) == [1, 5, 5, 1]
    assert at_least_one([0, 2]) == [1, 1]
    assert at_least_one([1, 1]) == [1, 1]
