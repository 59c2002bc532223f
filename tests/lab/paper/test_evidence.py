"""What may be claimed: standard errors and the two-standard-error rule, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankprune.lab.paper.evidence import at_chance, beats, best, number, percent, standard_error

SHARES = st.lists(st.floats(0, 1), min_size=3, max_size=6)


def test_standard_error_by_hand() -> None:
    # deviations -2, 0, 2 points: sd sqrt(8 / 2) = 2 points, over sqrt(3)
    assert standard_error([0.60, 0.62, 0.64]) == pytest.approx(0.02 / math.sqrt(3))
    assert standard_error([0.6]) is None
    assert percent([0.60, 0.62, 0.64]) == "62.00 ± 1.15 (3)"
    assert percent([0.6]) == "60.00"
    assert number([0.5, 0.7]) == "0.600 ± 0.100"


def test_two_standard_errors_of_the_difference() -> None:
    theirs = [0.60, 0.62, 0.64]  # error 1.1547 points each side: 2 * 1.1547 * sqrt(2) = 3.266 points
    assert not beats([0.632, 0.652, 0.672], theirs)
    assert beats([0.633, 0.653, 0.673], theirs)
    assert not beats(theirs, [0.633, 0.653, 0.673])


def test_fewer_than_three_runs_claim_nothing() -> None:
    assert not beats([0.9, 0.9], [0.1, 0.1, 0.1])
    assert not beats([0.9, 0.9, 0.9], [0.1, 0.1])


@given(SHARES, SHARES)
def test_two_lists_never_beat_each_other(a: list[float], b: list[float]) -> None:
    assert not (beats(a, b) and beats(b, a))
    assert not beats(a, a)


def test_best_must_win_everywhere_against_all() -> None:
    low, mid, high = [0.50, 0.51, 0.52], [0.60, 0.61, 0.62], [0.70, 0.71, 0.72]
    singles = {"gmp": {99.0: low, 99.5: low}, "rpg": {99.0: mid, 99.5: low}}
    winner, half = {99.0: high, 99.5: mid}, {99.0: high, 99.5: low}
    assert best({"a+b": winner, "c+d": half}, singles, (99.0, 99.5)) == "a+b"
    assert best({"c+d": half}, singles, (99.0, 99.5)) is None
    assert best({"a+b": winner}, {**singles, "once": {99.0: [0.1], 99.5: [0.1]}}, (99.0, 99.5)) is None
    assert best({"a+b": {99.0: high}}, singles, (99.0, 99.5)) is None


def test_at_chance_is_within_three_points_of_a_tenth() -> None:
    assert [at_chance(x) for x in (0.069, 0.07, 0.10, 0.13, 0.131)] == [False, True, True, True, False]
    assert percent([0.1]) == "at chance (10.00)"
