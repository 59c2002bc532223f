"""Recipes by name and path, inheritance, typed overrides, and the sentence for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankprune.core.method import method_info
from rankprune.lab.models import list_models
from rankprune.lab.recipes import RecipeError, list_recipes, load_recipe
from rankprune.lab.recipes.load import fingerprint
from rankprune.lab.recipes.names import merge


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_validates(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert ":" in recipe.model.name or recipe.model.name in list_models()  # test_tables.py builds those of libraries
    if name.endswith("-dense"):
        assert recipe.method is None
    else:
        assert recipe.method is not None
        row, percent = name.rsplit("-", 1)
        assert f"-{recipe.method.name}-" in f"{row}-"  # imagenet-resnet50-powerprop-erk-90 is powerprop
        method_info(recipe.method.name)
        assert recipe.method.sparsity == pytest.approx(float(percent) / 100, abs=1e-12)


def test_names_of_the_issue_are_there() -> None:
    names = set(list_recipes())
    for task, percents in {
        "fashion": ("95", "98"),
        "cifar10-vgg19": ("99", "99.5", "99.9"),
        "cifar10-resnet32": ("99", "99.5", "99.9"),
        "cifar10-cpu-resnet20": ("90", "95", "98", "99", "99.5", "99.9"),
        "cifar10-cpu-vgg": ("90", "95", "98", "99", "99.5", "99.9"),
    }.items():
        assert f"{task}-dense" in names
        for method in ("rpg", "gmp", "rigl", "set", "magnitude", "random"):
            assert {f"{task}-{method}-{percent}" for percent in percents} <= names


def test_the_papers_rows_have_its_authors_settings() -> None:
    recipe = load_recipe("cifar10-vgg19-rpg-99.9")
    assert recipe.method is not None
    assert (recipe.epochs, recipe.data.batch_size, recipe.optimizer.lr) == (300, 128, 0.1)
    assert (recipe.optimizer.name, recipe.optimizer.momentum, recipe.optimizer.weight_decay) == ("sgd", 0.9, 5e-4)
    assert recipe.method.hyper == {"every": 100, "prune_end": 0.8, "lam": 0.5, "delta": 0.1}
    assert recipe.method.sparsity == 0.999


def test_cpu_recipes_update_at_least_a_hundred_times() -> None:
    """Those with a period; methods that prune in rounds or phases have as many as they name."""
    for name in list_recipes("cifar10-cpu-*-98"):
        method = load_recipe(name).method
        assert method is not None
        steps = load_recipe(name).epochs * (50_000 // load_recipe(name).data.batch_size)
        made = method_info(method.name).cls(method.sparsity, **method.hyper)
        assert "every" not in method.hyper or len(made.updates(steps)) >= 100, name


def test_any_percentage_of_a_family_is_a_recipe() -> None:
    recipe = load_recipe("fashion-rpg-97.3")
    assert recipe.method is not None
    assert recipe.method.sparsity == 0.973


def test_extras_are_added_by_name() -> None:
    recipe = load_recipe("fashion-rpg+ham-98")
    assert recipe.method is not None
    assert (recipe.method.name, recipe.method.hyper) == ("rpg+ham", load_recipe("fashion-rpg-98").method.hyper)  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="did you mean 'ham'"):
        load_recipe("fashion-rpg+hamm-98")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("optimizer.lr=5e-2", ("optimizer", "lr"), 0.05),
        ("epochs=3", ("epochs",), 3),
        ("channels_last=true", ("channels_last",), True),
        ("amp=off", ("amp",), "off"),
        ("data.limit_train=null", ("data", "limit_train"), None),
        ("method.lam=2", ("method", "lam"), 2.0),
        ("method.prune_end=60%", ("method", "prune_end"), "60%"),
        ("schedule={name: step, milestones: [0.5, 0.75]}", ("schedule", "milestones"), [0.5, 0.75]),
    ],
)
def test_overrides_are_typed(override: str, path: tuple[str, ...], value: object) -> None:
    found: object = load_recipe("fashion-rpg-98", [override])
    for part in path:
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.lrr=1", ("'lrr'", "optimizer", "'lr'")),
        ("optimiser.lr=1", ("'optimiser'", "'optimizer'")),
        ("method.lmda=2", ("rpg", "'lmda'", "'lam'")),
        ("method.lam=two", ("method.lam", "'two'")),
        ("method.name=rpgg", ("'rpgg'", "'rpg'")),
        ("method.every=2.5", ("method.every", "2.5")),
        ("method.sparsity=98", ("method.sparsity", "98", "less than 1")),
        ("epochs=many", ("epochs", "'many'")),
        ("epochs=true", ("epochs=True", "number")),
        ("data.batch_size=yes", ("batch_size=True", "number")),
        ("clip_norm=on", ("clip_norm=True", "number")),
        ("method.prune_end=true", ("method.prune_end=True", "number")),
        ("optimizer.lr=-1", ("optimizer.lr", "-1")),
        ("optimizer.lr=.inf", ("optimizer.lr", "finite")),
        ("schedule.name=step", ("milestones",)),
        ("schedule.warmup_epochs=99", ("warmup_epochs", "99")),
        ("epochs", ("'epochs'", "key=value")),
        ("epochs=[1", ("epochs", "YAML")),
    ],
)
def test_a_wrong_override_is_one_sentence(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("fashion-rpg-98", [override])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_misspelt_name_is_told_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'fashion-rpg-98'"):
        load_recipe("fashion-rgp-98")
    with pytest.raises(RecipeError, match="rankprune recipes"):
        load_recipe("zzzzz")


def test_files_inherit_from_recipes_and_files(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("base: fashion-rpg-98\noptimizer: {lr: 0.05}\n")
    (tmp_path / "two.yaml").write_text("base: one.yaml\nepochs: 2\nmethod: {lam: 1}\n")
    two = load_recipe(tmp_path / "two.yaml")
    assert two.name == "two"
    assert (two.epochs, two.optimizer.lr, two.optimizer.weight_decay) == (2, 0.05, 5e-4)
    assert two.method is not None
    assert two.method.hyper == {"every": 10, "prune_end": 0.7, "lam": 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: loop.yaml\n", ("its own base",)),
        ("epochs: 2\nepochs: 3\n", ("given twice", "line 1")),
        ("- 1\n", ("no recipe",)),
        ("epochs: 2\n", ("data", "missing")),
        ("base: 3\n", ("base=3",)),
        ("a: [", ("not YAML",)),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_is_of_what_decides_the_outcome() -> None:
    def of(*overrides: str) -> str:
        return fingerprint(load_recipe("cifar10-cpu-vgg-rpg-98", overrides))

    assert of() == of("data.root=elsewhere") == of("save.every_steps=7") == of("optimizer.lr=0.1")
    assert len({of(), of("seed=1"), of("optimizer.lr=0.2"), of("method.lam=1"), of("epochs=9")}) == 5
    folder = "data={name: imagefolder, root: %s}"
    assert of(folder % "a") != of(folder % "b")


def test_merge_goes_into_mappings_and_replaces_the_rest() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1], "e": None}
    assert merge(base, {"a": {"c": 3}, "d": [2], "e": {"f": 1}, "g": 0}) == {
        "a": {"b": 1, "c": 3}, "d": [2], "e": {"f": 1}, "g": 0,
    }  # fmt: skip
    assert base == {"a": {"b": 1, "c": 2}, "d": [1], "e": None}


def test_listing_needs_neither_torch_nor_pydantic() -> None:
    code = "import sys; from rankprune.lab.recipes import list_recipes; print(len(list_recipes())); "
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'pydantic')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(list_recipes())
