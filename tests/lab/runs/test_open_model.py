"""A finished run's own folder says what its weights do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankprune.lab.data.generate import write_image_folder
from rankprune.lab.recipes import load_recipe
from rankprune.lab.report.analyze import analyze
from rankprune.lab.runs.open_model import open_model
from rankprune.lab.training import train

FEW = ("epochs=1", "data.limit_train=16", "data.limit_test=4", "data.batch_size=8", "method.every=1")


def test_grey_images_of_a_vit(tmp_path: Path) -> None:
    outcome = train(load_recipe("fashion-rpg-90", [*FEW, "model.name=vit-tiny-cpu", "data.image_size=28"]), tmp_path)
    example = open_model(outcome.folder).example
    assert example.shape == (1, 1, 28, 28)
    assert analyze(outcome.folder).macs.dense == outcome.result.macs_dense


def test_an_image_folder_at_its_own_size(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    root = write_image_folder(tmp_path / "pictures", classes=2)
    data = [f"data={{name: imagefolder, root: {root}, image_size: null}}", "model.name=vgg-small-half"]
    # Two steps: an epoch of this folder is one, and RPG updates no mask on its last step.
    outcome = train(load_recipe("fashion-rpg-90", [*FEW, *data, "epochs=2"]), tmp_path)
    example = open_model(outcome.folder).example
    assert example.shape == (1, 3, 224, 224)
    assert analyze(outcome.folder).macs.dense == outcome.result.macs_dense
