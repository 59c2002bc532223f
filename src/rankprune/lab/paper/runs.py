"""One run of the evidence: what it is, its recipe, and the key by which its record is found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankprune.lab.recipes import Recipe, RecipeError, load_recipe
from rankprune.lab.runs.run_folder import MODEL, RunFolder
from rankprune.lab.training.smoke import smaller

# What takes the place of CIFAR-10 where it is absent.
EMBEDDED = ("data.name=fashion", "data.image_size=14")
# Where data lie, how a run is spread over processes and how it is called do not make it another run.
_NOT_IN_KEY = {"name": True, "note": True, "save": True, "parallel": True, "data": {"root", "workers", "download"}}


@dataclass(frozen=True)
class Run:
    """A member of a recipe family with a few settings changed."""

    task: str
    method: str  # with extras; "dense"
    percent: float | None = None  # sparsity
    settings: tuple[tuple[str, Any], ...] = ()  # dotted key and value: what sets it apart from its recipe
    seed: int = 0
    budget: tuple[str, ...] = ()  # overrides that all runs of the task share: how long they train
    pretrained: bool = False  # starts from the weights of the task's dense run
    smoke: bool = False  # a few steps only: that it runs, not how well

    @property
    def name(self) -> str:
        return f"{self.task}-dense" if self.percent is None else f"{self.task}-{self.method}-{self.percent:g}"

    def __str__(self) -> str:
        words = [self.name, *(f"{key}={value}" for key, value in self.settings)]
        words += ["from pretrained"] * self.pretrained + ["smoke"] * self.smoke + [f"seed {self.seed}"]
        return ", ".join(words)

    def dense(self) -> Run:
        """The run whose weights a pretrained start takes."""
        return Run(self.task, "dense", budget=self.budget)

    @cache  # noqa: B019  (runs live as long as the command)
    def known(self) -> bool:
        """Whether the recipe is there and can be understood."""
        try:
            self.recipe()
        except RecipeError:
            return False
        return True

    @cache  # noqa: B019
    def recipe(self, embedded: bool = False) -> Recipe:
        """Without the place of the data or of the weights to start from."""
        settings = [f"{key}={json.dumps(value)}" for key, value in self.settings]
        recipe = load_recipe(self.name, [*self.budget, *settings, f"seed={self.seed}"])
        if embedded and recipe.data.name == "cifar10":
            recipe = load_recipe(self.name, [*self.budget, *settings, f"seed={self.seed}", *EMBEDDED])
        return smaller(recipe) if self.smoke else recipe

    @cache  # noqa: B019
    def key(self, embedded: bool = False) -> str:
        """Of the resolved recipe, and of the dense run it starts from."""
        # Defaults are the code's, which a record names by its own digest: a new key of recipes changes no old run.
        recipe = self.recipe(embedded).model_dump(mode="json", exclude=_NOT_IN_KEY, exclude_defaults=True)
        start = self.dense().key(embedded) if self.pretrained else None
        return digest({"recipe": recipe, "start": start})

    def placed(self, out: Path, data: str | None, embedded: bool) -> Recipe:
        """The recipe with the places of data and weights."""
        recipe = self.recipe(embedded)
        if data is not None and recipe.data.name != "fashion" and not self.smoke:  # which runs on generated pictures
            recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": data})})
        if self.pretrained:
            weights = str(RunFolder.of(self.dense().placed(out, data, embedded), out).path / MODEL)
            recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": weights})})
        return recipe


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
