"""The rows of the RPG paper's tables: each is there, builds, and prunes the weights it should."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from rankprune.core.discover import find_layers
from rankprune.core.method import method_info
from rankprune.lab.models import create_model
from rankprune.lab.recipes import list_recipes, load_recipe

TABLES = {
    "cifar10-vgg19": (("dense", "pbw", "mlprune", "probmask", "acdc", "rpg"), ("99", "99.5", "99.9")),
    "cifar10-resnet32": (("dense", "pbw", "mlprune", "probmask", "acdc", "rpg"), ("99", "99.5", "99.9")),
    "imagenet-resnet50": (
        ("dense", "str", "woodfisher", "granet", "acdc", "probmask", "powerprop", "powerprop-erk", "topkast-erk", "rpg"),
        ("80", "90", "95", "98"),
    ),
    "coco-maskrcnn": (("dense", "rigl", "acdc", "rpg"), ("50", "70", "80")),
    "imagenet-deit-s": (("dense", "svite", "acdc", "rpg"), ("50", "60", "80")),
}
LARGE = [name for task in TABLES if not task.startswith("cifar") for name in list_recipes(f"{task}-*")]
CLASSES = {"imagenet-resnet50": 1000, "imagenet-deit-s": 1000, "coco-maskrcnn": 91}
# Prunable weights: methods-spec's counts; of Mask R-CNN torchvision's 91 classes without stem and first stage.
PRUNABLE = {"imagenet-resnet50": 25_502_912, "imagenet-deit-s": 21_912_576, "coco-maskrcnn": 44_172_800}


@lru_cache
def shapes(name: str, classes: int, args: str) -> int:
    """Prunable weights of a model that is built without its numbers."""
    with torch.device("meta"):
        model = create_model(name, classes, **eval(args))
    layers, _ = find_layers(model)
    return sum(layer.numel for layer in layers)


@pytest.mark.parametrize("task", TABLES)
def test_every_row_is_there(task: str) -> None:
    rows, percents = TABLES[task]
    names = set(list_recipes(f"{task}-*"))
    for row in rows:
        assert ({f"{task}-dense"} if row == "dense" else {f"{task}-{row}-{percent}" for percent in percents}) <= names


def test_from_scratch_is_at_90_and_95_alone() -> None:
    assert list_recipes("imagenet-resnet50-rpg-scratch-*") == [f"imagenet-resnet50-rpg-scratch-{p}" for p in (90, 95)]
    scratch, tuned = load_recipe("imagenet-resnet50-rpg-scratch-90"), load_recipe("imagenet-resnet50-rpg-90")
    assert scratch.method == tuned.method
    assert (scratch.model.pretrained, tuned.model.pretrained) == (False, "IMAGENET1K_V1")


@pytest.mark.parametrize("name", LARGE)
def test_it_builds_and_its_updates_fit(name: str) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    recipe = load_recipe(name)
    task = next(task for task in CLASSES if name.startswith(task))
    assert shapes(recipe.model.name, CLASSES[task], repr(recipe.model.args)) == PRUNABLE[task]
    if recipe.method is None:
        return
    steps = recipe.epochs * (recipe.data.steps_per_epoch or 1_281_167 // recipe.data.batch_size)
    made = method_info(recipe.method.name).cls(recipe.method.sparsity, **recipe.method.hyper)
    assert len(made.updates(steps)) > 5


def test_rpg_has_its_authors_settings() -> None:
    for percent, lam, delta in ((80, 0.5, 0.2), (90, 0.5, 0.1), (95, 3.0, 0.2), (98, 4.0, 0.2)):
        recipe = load_recipe(f"imagenet-resnet50-rpg-{percent}")
        assert recipe.method is not None
        made = method_info("rpg").cls(recipe.method.sparsity, **recipe.method.hyper)
        assert made.coefficients() == (lam, delta)  # type: ignore[attr-defined]
        assert len(made.updates(125_100)) == 1126  # 1,126 reach the density, where the authors' code has one more
    assert (recipe.epochs, recipe.data.batch_size, recipe.optimizer.lr, recipe.optimizer.weight_decay) == (100, 1024, 0.4, 1e-4)
    assert (recipe.label_smoothing, recipe.schedule.name, recipe.schedule.warmup_epochs) == (0.1, "cosine", 5)


def test_mask_rcnn_runs_for_96_000_steps() -> None:
    recipe = load_recipe("coco-maskrcnn-rpg-80")
    assert recipe.epochs * (recipe.data.steps_per_epoch or 0) == 96_000
    assert (recipe.data.batch_size, recipe.optimizer.lr, recipe.optimizer.weight_decay) == (16, 0.02, 1e-4)
    assert "unpublished" in recipe.note


def test_deit_has_its_own_training() -> None:
    recipe = load_recipe("imagenet-deit-s-rpg-60")
    assert (recipe.epochs, recipe.optimizer.name, recipe.optimizer.weight_decay) == (600, "adamw", 0.05)
    assert recipe.optimizer.lr == pytest.approx(5e-4 * recipe.data.batch_size / 512)
    assert (recipe.data.repeats, recipe.data.erase, recipe.data.rand_augment) == (3, 0.25, "rand-m9-mstd0.5-inc1")
    assert recipe.mix is not None
    assert (recipe.mix.mixup, recipe.mix.cutmix) == (0.8, 1.0)
    assert recipe.method is not None
    assert recipe.method.hyper == {"every": 100, "prune_end": 0.9, "rank_layers": "all", "lam": 0.5, "delta": 0.2}
    assert "unpublished" in recipe.note
    svite = load_recipe("imagenet-deit-s-svite-60")
    assert svite.optimizer.lr == pytest.approx(5e-4 * svite.data.batch_size / 512)


def test_rows_with_their_own_name_take_extras() -> None:
    recipe = load_recipe("imagenet-resnet50-powerprop-erk+ham-90")
    assert recipe.method is not None
    assert (recipe.method.name, recipe.method.hyper) == ("powerprop+ham", {"distribution": "erk"})
