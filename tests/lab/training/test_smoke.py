"""Smoke runs: each recipe's real code in miniature, on generated pictures and on small real data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from _runs import Plug
from rankprune.lab.recipes import list_recipes, load_recipe
from rankprune.lab.training import smoke
from rankprune.lab.training.evaluate import evaluate
from rankprune.lab.training.smoke import smaller, stand_in

TASKS = ("imagenet-resnet50", "imagenet-deit-s", "coco-maskrcnn")
ROWS = sorted({name.rpartition("-")[0] for task in TASKS for name in list_recipes(f"{task}-*-*") if "dense" not in name})
REAL = {
    "imagenet-resnet50-granet-90": "imagenette2-96",
    "imagenet-deit-s-svite-50": "imagenette2-96",
    "coco-maskrcnn-rigl-50": "tiny_coco/tiny_coco",
}


@pytest.mark.parametrize("task", TASKS)
def test_the_miniature_keeps_the_recipe_and_fetches_nothing(task: str) -> None:
    recipe = load_recipe(f"{task}-rpg-80")
    small = smaller(recipe)
    assert small.model.pretrained is False
    assert small.model.name == recipe.model.name
    assert (small.mix, small.ema, small.optimizer) == (recipe.mix, recipe.ema, recipe.optimizer)
    assert small.method is not None
    assert small.method.sparsity == 0.8
    if task.startswith("coco"):
        pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")
    data = stand_in(small)
    assert data is not None
    folder = data.folder.path  # type: ignore[attr-defined]
    assert len(list(data.train(0))) == data.batches_per_epoch
    assert folder.is_dir()
    del data
    assert not folder.exists()


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
def test_mixup_finds_pairs_on_every_process(processes: int) -> None:
    share, rest = divmod(smaller(load_recipe("imagenet-deit-s-rpg-60"), processes).data.batch_size, processes)
    assert (share % 2, rest) == (0, 0)


def test_data_that_are_there_are_used(tmp_path: Path) -> None:
    assert stand_in(smaller(load_recipe("imagenet-resnet50-dense", [f"data.root={tmp_path}"]))) is None


class Fixed(torch.nn.Module):
    """Logits by a table, whatever the images."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits[: len(x)]


def test_top1_and_top5_of_a_hand_case() -> None:
    """Of eight images whose right classes rank 1st, 5th, 6th, 1st, 2nd, 10th, 5th and 1st: 3 of 8 and 6 of 8."""
    data = stand_in(smaller(load_recipe("cifar10-vgg19-dense", ["data.image_size=32"])))
    assert data is not None
    labels = torch.cat([labels for _, labels in data.test()])[:8]
    logits = torch.zeros(8, 10)
    for i, rank in enumerate((1, 5, 6, 1, 2, 10, 5, 1)):
        wrong = [c for c in range(10) if c != labels[i]]
        order = [*wrong[: rank - 1], int(labels[i]), *wrong[rank - 1 :]]
        logits[i, order] = torch.arange(10, 0, -1).float()

    class Eight:
        num_classes = 10

        def test(self):  # type: ignore[no-untyped-def]
            yield torch.zeros(8, 3, 32, 32), labels

    found = evaluate(Fixed(logits), Eight())  # type: ignore[arg-type]
    assert (found["top1"], found["top5"]) == (3 / 8, 6 / 8)


def run(name: str, out: Path, *overrides: str) -> None:
    if name.startswith("coco"):
        pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")
    callback, recipe = Plug(), load_recipe(name, overrides)
    outcome = smoke(recipe, out, callback=callback)
    assert outcome.result.steps == len(callback.steps)
    assert outcome.result.target_sparsity == (0.0 if recipe.method is None else recipe.method.sparsity)
    assert outcome.result.sparsity == pytest.approx(outcome.result.target_sparsity, abs=1e-5)
    assert bool(recipe.model.pretrained) == any("random weights" in message for message in callback.messages)
    measures = {"box_ap_last", "mask_ap_last"} if name.startswith("coco") else {"top5_last"}
    assert outcome.result.metric == ("box_ap" if name.startswith("coco") else "top1")
    assert measures - {"box_ap_last"} <= set(outcome.result.scores)


@pytest.mark.long
@pytest.mark.parametrize("row", [*ROWS, *(f"{task}-dense" for task in TASKS)])
def test_every_row_runs_on_generated_pictures(row: str, tmp_path: Path) -> None:
    run(row if row.endswith("dense") else f"{row}-90", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_one_row_of_each_family_runs_on_real_pictures(name: str, tmp_path: Path, real_data: Path) -> None:
    run(name, tmp_path, f"data.root={real_data / REAL[name]}")
