"""The command line opens what it has written: classes, channels and image size are in the file, or in its shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import rankprune as rp
from rankprune.cli import main
from rankprune.lab.models import ModelError, create_model, find_about
from rankprune.lab.models.weights import read_state_dict
from rankprune.lab.runs.open_model import open_model

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")

CLASSES = 7
# One of each way to begin and to end: a stem first or last in the state dict, a classifier that is a convolution, two
# heads, patches, a constructor that computes.
SAMPLE = {
    "torchvision:mobilenet_v2": 224,
    "torchvision:mnasnet0_5": 224,
    "torchvision:squeezenet1_1": 224,
    "torchvision:shufflenet_v2_x0_5": 224,
    "torchvision:regnet_y_400mf": 224,
    "timm:mobilenetv3_small_050": 224,
    "timm:test_vit": 160,
    "timm:deit_tiny_distilled_patch16_224": 224,
    "timm:test_efficientnet": 160,
}


def same(model: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[name], state[name]) for name in own)


def reopened(name: str, folder: Path, channels: int = 3) -> tuple[int, ...]:
    """Prune weights of `name` by the command; open the result by its metadata, and by its shapes where it has none."""
    torch.save(create_model(name, CLASSES, channels).state_dict(), folder / "w.pth")
    command = ["prune", str(folder / "w.pth"), "--model", name, "--sparsity", "0.9", "--out", str(folder / "p.safetensors")]
    assert main([*command, "--json"]) == 0
    state = rp.load(folder / "p.safetensors")
    save_file({key: state[key].contiguous().clone() for key in sorted(state, reverse=True)}, folder / "plain.safetensors")
    known, found = open_model(folder / "p.safetensors"), open_model(folder / "plain.safetensors", name)
    assert known.about == found.about
    assert (found.about.num_classes, found.about.in_channels) == (CLASSES, channels)
    assert same(known.model, state)
    assert same(found.model, state)
    return tuple(found.example.shape)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_pruned_file_is_opened_again(name: str, tmp_path: Path) -> None:
    assert reopened(name, tmp_path) == (1, 3, SAMPLE[name], SAMPLE[name])


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("torchvision:inception_v3", 299),
        ("torchvision:efficientnet_b1", 240),
        ("torchvision:vit_h_14", 224),  # as the network is built, though its weights are for 518 pixels
        ("torchvision:swin_v2_t", 256),
        ("torchvision:fcn_resnet50", 520),
        ("torchvision:maskrcnn_resnet50_fpn", 800),
        ("timm:vit_tiny_patch16_384", 384),
        ("timm:tf_efficientnet_b4", 380),
        ("cifar-vgg19", 32),
    ],
)
def test_images_have_the_size_of_the_models_own_configuration(name: str, size: int) -> None:
    with torch.device("meta"):
        state = create_model(name, CLASSES).state_dict()
    about = find_about(name, {}, state)
    assert (about.image_size, about.num_classes) == (size, CLASSES)


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v3_small", "timm:resnet10t", "vit-tiny-cpu"])
def test_other_channels_are_found_too(name: str, tmp_path: Path) -> None:
    assert reopened(name, tmp_path, channels=5)[1] == 5


def every_family() -> list[str]:
    """All of torchvision's classifiers up to 100 million weights, and one network of each of timm's families."""
    families: dict[str, str] = {}
    for name in timm.list_models():
        families.setdefault(timm.models._registry._model_to_module[name], name)
    large = {"vit_h_14", "vit_l_16", "vit_l_32", "regnet_y_128gf", "regnet_y_32gf", "regnet_x_32gf", "convnext_large"}
    large |= {"swin_b", "swin_v2_b", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"}
    ours = [name for name in torchvision.models.list_models(module=torchvision.models) if name not in large]
    return [*(f"torchvision:{name}" for name in ours), *(f"timm:{name}" for name in families.values())]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_networks_of_every_family_are_opened_again(tmp_path: Path) -> None:
    wrong: dict[str, str] = {}
    for name in every_family():
        state = create_model(name, CLASSES).state_dict()
        if sum(tensor.numel() for tensor in state.values()) > 1e8:
            continue
        shuffled = {key: state[key] for key in sorted(state)}
        try:
            about = find_about(name, {}, shuffled)
            rp.save(shuffled, tmp_path / "p.safetensors", about=about.to_dict())
            opened = open_model(tmp_path / "p.safetensors")
            with torch.inference_mode():
                opened.model(opened.example)
            if about.num_classes != CLASSES or not same(opened.model, state):
                wrong[name] = f"{about}"
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert wrong == {}


def test_the_commands_of_the_manual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """prune, then export, analyze and prune again, with and without the model's name."""
    name, pruned = "timm:test_efficientnet", str(tmp_path / "p.safetensors")  # export compiles it twice, so it is small
    torch.save(create_model(name, 1000).state_dict(), tmp_path / "w.pth")
    assert main(["prune", str(tmp_path / "w.pth"), "--model", name, "--sparsity", "0.9", "--out", pruned]) == 0
    for named in ([], ["--model", name]):
        out = str(tmp_path / "e.safetensors")
        command = ["export", pruned, *named, "--to", "safetensors", "--out", out, "--image-size", "32", "--threads", "1"]
        assert main(command) == 0
        assert load_file(out).keys() == create_model(name).state_dict().keys()
        assert open_model(Path(out)).about.image_size == 32  # a plain file says it as well
        assert main(["prune", out, *named, "--sparsity", "0.95", "--out", str(tmp_path / "again.safetensors")]) == 0
    known = str(tmp_path / "known.safetensors")
    torch.save(create_model("torchvision:mobilenet_v2", 1000).state_dict(), tmp_path / "w.pth")
    assert main(["prune", str(tmp_path / "w.pth"), "--model", "torchvision:mobilenet_v2", "--sparsity", "0.9", "--out", known]) == 0
    capsys.readouterr()
    assert main(["analyze", known, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["macs_dense"] == 300_774_272  # of 224 x 224 pixels, as its paper counts


def test_the_name_on_the_command_line_goes_before_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = create_model("cifar-resnet20")
    about = find_about("cifar-resnet20", {}, model.state_dict())
    rp.save(model, tmp_path / "p.safetensors", about=about.to_dict())
    assert main(["analyze", str(tmp_path / "p.safetensors"), "--model", "vgg-small"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("rankprune: The weights do not fit vgg-small: it lacks ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "size"), [("googlenet", 224), ("inception_v3", 299)])
def test_auxiliary_heads_of_a_foreign_file_are_left_out(name: str, size: int, tmp_path: Path) -> None:
    """torchvision's own files of these networks hold heads that only training uses."""
    theirs = torchvision.models.get_model(name, weights=None, init_weights=False, num_classes=CLASSES)
    assert any(key.lower().startswith("aux") for key in theirs.state_dict())
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    opened = open_model(tmp_path / "w.pth", f"torchvision:{name}")
    assert opened.example.shape == (1, 3, size, size)
    x = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(opened.model(x), theirs.eval()(x))


def test_a_network_for_larger_images_is_found_by_its_positions(tmp_path: Path) -> None:
    """Some of torchvision's weights of vit_b_16 are for 384 pixels; of timm's networks the size is given."""
    with torch.device("meta"):
        theirs = torchvision.models.vit_b_16(image_size=384, num_classes=CLASSES).state_dict()
    about = find_about("torchvision:vit_b_16", {}, theirs)
    assert (about.num_classes, about.image_size, about.args) == (CLASSES, 384, {"image_size": 384})
    torch.save(timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=CLASSES).state_dict(), tmp_path / "t.pth")
    assert open_model(tmp_path / "t.pth", "timm:vit_tiny_patch16_224", 64).example.shape == (1, 3, 64, 64)
    with pytest.raises(ModelError, match="do not fit timm:vit_tiny_patch16_224: pos_embed is"):
        open_model(tmp_path / "t.pth", "timm:vit_tiny_patch16_224")


def test_rp_load_fills_mnasnet(tmp_path: Path) -> None:
    """Its `load_state_dict` asks for a version that a safetensors file does not hold."""
    model = torchvision.models.mnasnet0_5(num_classes=CLASSES)
    rp.save(model, tmp_path / "m.safetensors")
    other = torchvision.models.mnasnet0_5(num_classes=CLASSES)
    rp.load(tmp_path / "m.safetensors", other)
    assert same(other, model.state_dict())


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v3_small", "timm:test_vit", "timm:mobilenetv3_small_050.lamb_in1k"])
def test_bench_takes_the_name_of_a_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Found:
        def to_dict(self) -> dict[str, Any]:
            return {}

    def benchmark(model: nn.Module, example: torch.Tensor, *others: Any, **options: Any) -> Found:  # the timing has its own tests
        seen.update(model=model, shape=tuple(example.shape))
        return Found()

    monkeypatch.setattr("rankprune.cli.bench.benchmark", benchmark)
    assert main(["bench", name, "--batch", "2", "--json"]) == 0
    assert seen["shape"] == (2, 3, *((160, 160) if "test_vit" in name else (224, 224)))
    with torch.inference_mode():
        assert seen["model"](torch.zeros(seen["shape"])).shape == (2, 1000)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("torchvision:resnet19", "There is no model 'torchvision:resnet19': the nearest is 'torchvision:resnet18'"),
        ("cifar-resnet21", "There is no model 'cifar-resnet21': the nearest is 'cifar-resnet20'"),
        ("no/such.safetensors", "There is no run folder or weights file no/such.safetensors"),
    ],
)
def test_bench_says_what_is_not_there(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", given]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_what_a_state_dict_of_another_prefix_says(tmp_path: Path) -> None:
    model = create_model("cifar-resnet20", CLASSES, 1)
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "w.pth")
    assert len(read_state_dict(tmp_path / "w.pth")) == len(model.state_dict())
    about = open_model(tmp_path / "w.pth", "cifar-resnet20").about
    assert (about.num_classes, about.in_channels, about.image_size) == (CLASSES, 1, 32)
