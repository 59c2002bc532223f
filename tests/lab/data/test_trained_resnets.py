"""The published option-A ResNets give their published accuracies, so model, reader and test batches are all right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankprune.lab.data import load_data
from rankprune.lab.models import WeightsError, create_model, load_weights


def weights(folder: Path, depth: int) -> Path:
    (path,) = (folder / "weights_cifar10").glob(f"resnet{depth}-*.th")
    return path


@pytest.mark.parametrize(
    ("depth", "accuracy"),
    [
        (20, 91.73),
        pytest.param(32, 92.63, marks=pytest.mark.long),
        pytest.param(44, 93.10, marks=pytest.mark.long),
        pytest.param(56, 93.39, marks=pytest.mark.long),
    ],
)
def test_accuracy(real_data: Path, depth: int, accuracy: float) -> None:
    model = load_weights(create_model(f"cifar-resnet{depth}-a"), weights(real_data, depth)).eval()
    # They were trained on images normalised by ImageNet's statistics.
    data = load_data("cifar10", real_data, normalize="imagenet")
    with torch.inference_mode():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in data.test())
    assert right / 100 == pytest.approx(accuracy, abs=0.011)  # at most one image of 10,000 by rounding


@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_they_fit_their_own_model_only(real_data: Path, depth: int) -> None:
    path = weights(real_data, depth)
    load_weights(create_model(f"cifar-resnet{depth}-a"), path)
    with pytest.raises(WeightsError, match=r"lacks \d+ of \d+ tensors \(first layer2.0.shortcut.0.weight\)"):
        load_weights(create_model(f"cifar-resnet{depth}"), path)
    with pytest.raises(WeightsError, match="it has 10 classes and the model 100"):
        load_weights(create_model(f"cifar-resnet{depth}-a", num_classes=100), path)
