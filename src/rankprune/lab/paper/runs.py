"""One run of the queue: its recipe, and the key that identifies its record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankprune.lab.recipes import Recipe, RecipeError, load_recipe
from rankprune.lab.recipes.schema import Distill
from rankprune.lab.runs.run_folder import MODEL, RunFolder
from rankprune.lab.training.smoke import smaller

# Replaces CIFAR-10 where it is missing.
EMBEDDED = ("data.name=fashion", "data.image_size=14")
# Keys that do not change the outcome: names, the location of the data, parallelism.
_NOT_IN_KEY = {"name": True, "note": True, "save": True, "parallel": True, "data": {"root", "workers", "download"}}


@dataclass(frozen=True)
class Run:
    """A recipe with a few changed settings."""

    task: str
    method: str  # with extras; "dense"
    percent: float | None = None  # sparsity
    settings: tuple[tuple[str, Any], ...] = ()  # (dotted key, value) of each changed setting
    seed: int = 0
    budget: tuple[str, ...] = ()  # overrides shared by all runs of the task, such as their number of epochs
    pretrained: bool = False  # starts from the weights of the task's dense run
    smoke: bool = False  # only a few steps, to check that it runs
    distilled: bool = False  # learns from the task's dense run as well

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return f"{self.task}-dense" if self.percent is None else f"{self.task}-{self.method}-{self.percent:g}"

    def __str__(self) -> str:
        words = [self.name, *(f"{key}={value}" for key, value in self.settings)]
        words += ["from pretrained"] * self.pretrained + ["distilled"] * self.distilled + ["smoke"] * self.smoke
        return ", ".join([*words, f"seed {self.seed}"])

    @property
    def needs_dense(self) -> bool:
        """Whether the dense run must come first."""
        return self.pretrained or self.distilled

    def dense(self) -> Run:
        """Return the dense run that this run starts from or learns from: as long, and on the same images."""
        shared = tuple((key, value) for key, value in self.settings if key == "epochs" or key.startswith("data."))
        return Run(self.task, "dense", settings=shared, budget=self.budget)

    @cache  # noqa: B019  (runs live as long as the command)
    def known(self) -> bool:
        """Whether the recipe exists and is valid."""
        try:
            self.recipe()
        except RecipeError:
            return False
        return True

    @cache  # noqa: B019
    def recipe(self, embedded: bool = False) -> Recipe:
        """Return the recipe, without the location of the data, of the initial weights and of the teacher's.

        Args:
            embedded: Use the embedded images instead of CIFAR-10.

        Returns:
            The resolved recipe.
        """
        settings = [f"{key}={json.dumps(value)}" for key, value in self.settings]
        recipe = load_recipe(self.name, [*self.budget, *settings, f"seed={self.seed}"])
        if embedded and recipe.data.name == "cifar10":
            recipe = load_recipe(self.name, [*self.budget, *settings, f"seed={self.seed}", *EMBEDDED])
        return smaller(recipe) if self.smoke else recipe

    @cache  # noqa: B019
    def key(self, embedded: bool = False) -> str:
        """Return the key of the resolved recipe and of the dense run it starts or learns from.

        Args:
            embedded: Use the embedded images instead of CIFAR-10.

        Returns:
            Twelve hexadecimal digits.
        """
        # Defaults are left out, so that adding a key to recipes does not change the keys of existing runs.
        recipe = self.recipe(embedded).model_dump(mode="json", exclude=_NOT_IN_KEY, exclude_defaults=True)
        start = self.dense().key(embedded) if self.pretrained else None
        teacher = {"teacher": self.dense().key(embedded)} if self.distilled else {}
        return digest({"recipe": recipe, "start": start, **teacher})

    def placed(self, out: Path, data: str | None, embedded: bool) -> Recipe:
        """Return the recipe with the location of the data, of the initial weights and of the teacher's.

        Args:
            out: Folder that holds the run folders.
            data: Folder of the data set, if there is one.
            embedded: Use the embedded images instead of CIFAR-10.

        Returns:
            The resolved recipe.
        """
        recipe = self.recipe(embedded)
        if data is not None and recipe.data.name != "fashion" and not self.smoke:  # a smoke run generates its images
            recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": data})})
        if self.needs_dense:
            weights = str(RunFolder.of(self.dense().placed(out, data, embedded), out).path / MODEL)
            if self.pretrained:
                recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": weights})})
            if self.distilled:
                teacher = Distill(model=recipe.model.name, weights=weights, args=recipe.model.args)
                recipe = recipe.model_copy(update={"distill": teacher})
        return recipe


def digest(value: Any) -> str:
    """Hash a JSON value.

    Args:
        value: Any value that JSON can hold.

    Returns:
        Twelve hexadecimal digits.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
