"""Models, data and settings that do not go together are refused before anything is trained or written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from _runs import data_of, small
from rankprune.lab.data.generate import write_coco
from rankprune.lab.models import ModelError, create_model
from rankprune.lab.recipes import load_recipe
from rankprune.lab.training import train
from rankprune.lab.training.validation import validate


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("torchvision:vgg11", r"torchvision:vgg11 does not accept images of 1 x 14 x 14 \(.*too small\): change data.image_size"),
        ("timm:vit_tiny_patch16_224", r"vit_tiny_patch16_224 does not accept images of 1 x 14 x 14 \(.*224.*\): change"),
        ("vit-tiny-cpu", r"vit-tiny-cpu does not accept images of 1 x 14 x 14 \(.*patches of 4\): change"),
        ("torchvision:fcn_resnet50", "fcn_resnet50 does not return one score for each of 10 classes: use a classifier"),
    ],
)
def test_a_model_that_does_not_suit_the_images(model: str, sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    with pytest.raises(ModelError, match=sentence) as caught:
        train(small("fashion-rpg-90", f"model.name={model}"), tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_trial_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model, data = create_model("test-tiny", 10, 1), data_of(16, 160, 100)
    state, chance = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    validate(small(), model, data)
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("mix={}", "mix is for images with one label each"),
        ("label_smoothing=0.1", "label_smoothing is for images with one label each"),
        ("distill={model: vgg-small, weights: w.pth}", "distill is for images with one label each"),
        ("model.name=torchvision:fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn predicts no masks"),
        ("data.image_size=300", "image_size=300 is not for coco"),
        ("data.normalize=imagenet", "normalize=imagenet is not for coco"),
    ],
)
def test_what_a_detector_does_not_heed_is_refused(override: str, sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")
    root = write_coco(tmp_path / "coco", 2, 2)
    settings = [f"data.root={root}", "data.batch_size=2", "model.pretrained=false", "model.args={}", override]
    with pytest.raises(ValueError, match=sentence):
        train(load_recipe("coco-maskrcnn-dense", settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()
