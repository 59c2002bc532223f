"""Options of an extra that is named with its method."""

from __future__ import annotations

import pytest
import torch

import rankprune as rp
from _nets import cnn, sgd
from rankprune.lab.recipes import RecipeError, load_recipe


def test_attach_gives_options_to_the_extra_they_are_for() -> None:
    model = cnn()
    options = {"rank_floor": {"cover": "matching", "most": 0.3}, "ham": {"alpha": 100.0}}
    sp = rp.attach(model, sgd(model), "gmp+rank_floor+ham", sparsity=0.9, total_steps=20, every=2, **options)
    assert list(sp.groups[0].extras) == [rp.extras.RankFloor(cover="matching", most=0.3), rp.extras.HAM(alpha=100.0)]


def test_a_mapping_of_fields_may_name_extras_too() -> None:
    model = cnn()
    sp = rp.attach(model, sgd(model), {"*": {"method": "gmp+ham", "sparsity": 0.9}}, total_steps=50, ham={"alpha": 100.0})
    assert (sp.groups[0].method.info.name, list(sp.groups[0].extras)) == ("gmp", [rp.extras.HAM(alpha=100.0)])


def test_an_unknown_option_is_a_sentence() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="rank_floor has no option 'covers': did you mean 'cover'"):
        rp.attach(model, sgd(model), "gmp+rank_floor", sparsity=0.9, total_steps=20, rank_floor={"covers": "row"})
    with pytest.raises(RecipeError, match="rank_floor has no option 'covers'"):
        load_recipe("fashion-feather+rank_floor-99", ["method.rank_floor.covers=row"])
    with pytest.raises(RecipeError, match="cover='diagonal' is unknown"):
        load_recipe("fashion-feather+rank_floor-99", ["method.rank_floor.cover=diagonal"])


def test_a_recipe_carries_them() -> None:
    recipe = load_recipe("fashion-feather+rank_floor-99", ["method.rank_floor.cover=matching"])
    assert recipe.method is not None
    assert recipe.method.hyper["rank_floor"] == {"cover": "matching"}
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 4))
    sp = rp.attach(model, sgd(model), recipe.method.name, sparsity=0.5, total_steps=4, **recipe.method.hyper)
    assert list(sp.groups[0].extras) == [rp.extras.RankFloor(cover="matching")]
