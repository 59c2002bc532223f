from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from torch import nn

from rankprune._util import need
from rankprune.lab.models import ModelError, WeightsError, create_model, list_models
from rankprune.lab.models.registry import register_model


def test_list_filters_by_glob() -> None:
    assert list_models("cifar-resnet*-a") == [f"cifar-resnet{d}-a" for d in (20, 32, 44, 56)]
    assert list_models() == sorted(list_models())
    assert {"cifar-vgg19", "cifar-resnet32x2", "vgg-small", "vit-tiny-cpu"} <= set(list_models())
    assert list_models("no-such-*") == []


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_library_is_listed_when_asked_for(library: str) -> None:
    pytest.importorskip(library)
    assert f"{library}:resnet18" in list_models(f"{library}:resnet*")
    assert not any(":" in name for name in list_models("*"))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("cifar-vgg16", "cifar-vgg19"),
        ("cifar-resnet21", "cifar-resnet20"),
        ("cifar-resnet32-x2", "cifar-resnet32x2"),
        ("torchvision:resnet19", "torchvision:resnet18"),
        ("timm:deit_smal_patch16_224", "timm:deit_small_patch16_224"),
    ],
)
def test_unknown_name_gives_the_nearest(name: str, nearest: str) -> None:
    if ":" in name:
        pytest.importorskip(name.partition(":")[0])
    with pytest.raises(ModelError, match=f"no model '{name}': the nearest is '{nearest}'"):
        create_model(name)


def test_bare_library_name_gives_the_full_one() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(ModelError, match="nearest is 'torchvision:vgg19_bn'"):
        create_model("vgg19_bn")


@pytest.mark.parametrize("name", ["torchvision:resnet18", "torchvision:mobilenet_v3_small", "timm:resnet18"])
def test_library_models_take_channels_and_classes(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    model = create_model(name, num_classes=4, in_channels=1).eval()
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    assert first.in_channels == 1


def test_kwargs_reach_the_constructor() -> None:
    pytest.importorskip("timm")
    model = create_model("timm:deit_tiny_patch16_224", num_classes=4, img_size=32, depth=1)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 4)


def test_resnet50_has_the_counts_of_the_pruning_tables() -> None:
    pytest.importorskip("torchvision")
    model = create_model("torchvision:resnet50", num_classes=1000)
    assert sum(p.numel() for p in model.parameters() if p.ndim > 1) == 25_502_912


def test_detection_model_is_built_without_a_download() -> None:
    pytest.importorskip("torchvision")
    model = create_model("torchvision:maskrcnn_resnet50_fpn", num_classes=3)
    assert model.roi_heads.box_predictor.cls_score.out_features == 3  # type: ignore[union-attr]


def test_own_models_have_nothing_to_download() -> None:
    with pytest.raises(ModelError, match="cifar-vgg19 has no weights to download"):
        create_model("cifar-vgg19", pretrained=True)


def test_pretrained_without_a_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    pytest.importorskip("torchvision")
    with socket.socket() as free:  # a port that nobody answers
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free.getsockname()[1]}")
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        with pytest.raises(WeightsError, match=r"torchvision:resnet18 could not be fetched .*load_weights") as caught:
            create_model("torchvision:resnet18", pretrained=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"num_classes": 0}, {"in_channels": 0}])
def test_senseless_sizes(bad: dict[str, int]) -> None:
    with pytest.raises(ModelError, match="at least 1"):
        create_model("vgg-small", **bad)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'vgg-small' is registered twice"):
        register_model("vgg-small")(nn.Linear)


def test_missing_extra_is_named() -> None:
    with pytest.raises(ImportError, match=r"^A test needs no_such_lib, .* pip install 'rankprune\[vision\]'\.$"):
        need("no_such_lib.models", "vision", "A test")


def test_pretrained_weights_by_name_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision looks into its cache before it fetches: a file of that name there is what is loaded."""
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.manual_seed(1)
    start = create_model("torchvision:resnet18", 1000)
    torch.save(start.state_dict(), cache / models.ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
    model = create_model("torchvision:resnet18", 10, pretrained="IMAGENET1K_V1")
    assert torch.equal(model.layer4[1].conv2.weight, start.layer4[1].conv2.weight)  # type: ignore[union-attr, index]
    assert model.fc.weight.shape == (10, 512)  # type: ignore[union-attr]
    start = create_model("torchvision:googlenet", 1000)
    torch.save(start.state_dict(), cache / models.GoogLeNet_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
    assert create_model("torchvision:googlenet", pretrained=True).transform_input  # as torchvision's own builder sets it
    assert not create_model("torchvision:googlenet").transform_input
    with pytest.raises(WeightsError, match=r"has no weights 'IMAGENET1K_V9': there are IMAGENET1K_V1"):
        create_model("torchvision:resnet18", pretrained="IMAGENET1K_V9")


def test_weights_that_timm_does_not_have_are_one_sentence() -> None:
    pytest.importorskip("timm")
    with pytest.raises(WeightsError, match=r"^timm:resnet18 has no weights 'nonsense': there are .*a1_in1k"):
        create_model("timm:resnet18", pretrained="nonsense")


def test_a_download_with_a_wrong_hash_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError('invalid hash value (expected "f37072fd", got "00000000")')

    monkeypatch.setattr(models.ResNet18_Weights, "get_state_dict", fail)
    with pytest.raises(WeightsError, match=r"^The pretrained weights of torchvision:resnet18 could not be .*invalid hash"):
        create_model("torchvision:resnet18", pretrained=True)
