"""Recipes: the settings of a run in YAML, strictly checked. `load_recipe("fashion-rpg-98", ["optimizer.lr=0.05"])`."""

from __future__ import annotations

from typing import Any

from .errors import RecipeError
from .names import list_recipes

__all__ = ["Recipe", "RecipeError", "list_recipes", "load_recipe"]


def __getattr__(name: str) -> Any:
    # Imported on demand, because listing names needs neither pydantic nor torch.
    if name == "Recipe":
        from .schema import Recipe

        return Recipe
    if name == "load_recipe":
        from .load import load_recipe

        return load_recipe
    raise AttributeError(f"module 'rankprune.lab.recipes' has no attribute '{name}'")
