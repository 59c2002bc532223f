from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
class Absent:  # as if they were not installed
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("torchvision", "timm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent)
from rankprune.lab.data import load_data
from rankprune.lab.models import create_model, list_models
x, y = next(load_data("fashion", limit_train=8, limit_test=8).train(0))
assert create_model("vgg-small", in_channels=1)(x).shape == (8, 10)
for call in (
    lambda: load_data("imagefolder", sys.argv[1]),
    lambda: load_data("cifar10", sys.argv[1], download=True),
    lambda: create_model("torchvision:resnet18"),
    lambda: create_model("timm:resnet18"),
    lambda: list_models("timm:*"),
    lambda: create_model("resnet18"),
):
    try:
        call()
    except (ImportError, ValueError) as error:
        print(error)
"""


def test_own_models_and_embedded_data_need_no_extra(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, capture_output=True, text=True)
    end = "which is not installed: pip install 'rankprune[vision]'."
    assert done.stdout.splitlines() == [
        f"An image folder needs torchvision, {end}",
        f"Downloading CIFAR-10 needs torchvision, {end}",
        f"A torchvision: model needs torchvision, {end}",
        f"A timm: model needs timm, {end}",
        f"A timm: model needs timm, {end}",
        "There is no model 'resnet18': the nearest is 'cifar-resnet20', and `rankprune models` lists all.",
    ]
