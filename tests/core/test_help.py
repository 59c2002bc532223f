"""`help()` of a method explains every one of its settings, whoever declares it."""

from __future__ import annotations

import pytest

import rankprune as rp
from rankprune.core.settings import explained, settings_of


@pytest.mark.parametrize("name", rp.list_methods())
def test_every_setting_is_explained(name: str) -> None:
    cls = rp.method_info(name).cls
    assert set(explained(cls)) == set(settings_of(cls))
    assert rp.method_info(name).description == cls.__doc__.split("\n")[0]


def test_the_words_are_those_of_the_nearest_class() -> None:
    rpg = explained(rp.methods.RPG)
    assert rpg["every"].startswith("ΔT, the steps between two mask updates")  # its own, not the plan's
    assert rpg["grow_init"].startswith("What a grown weight starts at")  # of DropGrow
    assert explained(rp.methods.GMP)["prune_end"] == "The step at which the final density is reached.\n"  # of the plan
    assert "Example:" in (rp.methods.RPG.__doc__ or "")
