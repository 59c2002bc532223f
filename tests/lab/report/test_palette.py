"""Colours of methods: one each, none twice in a legend, readable on white and on black."""

from __future__ import annotations

import pytest

import rankprune as rp
from rankprune.lab.report.palette import METHODS, OTHERS, TEXT, colours


def luminance(colour: str) -> float:
    """WCAG's relative luminance of an sRGB colour."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_method_has_a_colour_of_its_own() -> None:
    assert set(METHODS) == set(rp.list_methods())
    assert len({*METHODS.values(), *OTHERS}) == len(METHODS) + len(OTHERS)


@pytest.mark.parametrize("colour", [*METHODS.values(), *OTHERS, TEXT])
def test_it_can_be_read_on_white_and_on_black(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / 0.05 >= 3


def test_a_method_keeps_its_colour_and_no_colour_is_used_twice() -> None:
    few = colours(["rpg", "feather"])
    many = colours(["gmp", "feather+ham", "rpg", "mine", "feather", *(f"run {i}" for i in range(20))])
    assert few == {name: many[name] for name in few}
    assert len(set(many.values())) == len(many)
