from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rankprune.formats import save
from rankprune.lab.models import WeightsError, create_model, load_weights


def fresh(**kwargs: int) -> nn.Module:
    return create_model("cifar-resnet20-a", **kwargs)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return fresh().state_dict()


def assert_same(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


WRAPPINGS: dict[str, Any] = {
    "plain": lambda s: s,
    "ddp": lambda s: {f"module.{k}": v for k, v in s.items()},
    "compiled ddp": lambda s: {f"_orig_mod.module.{k}": v for k, v in s.items()},
    "checkpoint": lambda s: {"epoch": 3, "best_prec1": 91.7, "state_dict": OrderedDict(s), "optimizer": {"state": {}}},
    "timm": lambda s: {"model": {f"module.{k}": v for k, v in s.items()}, "args": ["a"]},
    "without counters": lambda s: {k: v for k, v in s.items() if "num_batches" not in k},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_torch_files(tmp_path: Path, state: dict[str, torch.Tensor], wrapping: str) -> None:
    torch.save(WRAPPINGS[wrapping](state), tmp_path / "w.pt")
    model = fresh()
    assert load_weights(model, tmp_path / "w.pt") is model
    assert_same(model, state)


def test_safetensors_and_old_torch_files(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save_file({f"module.{k}": v for k, v in state.items()}, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.th", _use_new_zipfile_serialization=False)
    for name in ("w.safetensors", "w.th"):
        assert_same(load_weights(fresh(), str(tmp_path / name)), state)


def test_a_file_is_what_it_holds_not_what_it_is_called(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state, tmp_path / "plain.st")
    save(state, tmp_path / "ours.st")
    for name in ("plain.st", "ours.st"):
        assert_same(load_weights(fresh(), tmp_path / name), state)


def test_a_name_that_only_some_tensors_begin_with_is_no_prefix(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict(module=nn.Linear(2, 2), other=nn.Linear(2, 2)))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    other = nn.Sequential(OrderedDict(module=nn.Linear(2, 2), other=nn.Linear(2, 2)))
    load_weights(other, tmp_path / "w.pt")
    assert_same(other, model.state_dict())


def check_refused(path: Path, message: str, model: nn.Module | None = None) -> None:
    model = model or fresh()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(model, path)
    assert "\n" not in str(caught.value)
    assert_same(model, before)


def test_other_number_of_classes(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save(state, tmp_path / "w.pt")
    check_refused(
        tmp_path / "w.pt", r"^w.pt does not fit .* it has 10 classes and the model 100, .* num_classes=10\.$",
        fresh(num_classes=100),
    )


def test_other_depth_and_other_input(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save(state, tmp_path / "w.pt")
    check_refused(tmp_path / "w.pt", r"lacks \d+ of \d+ tensors \(first layer1.3.", create_model("cifar-resnet32-a"))
    check_refused(tmp_path / "w.pt", r"has \d+ tensors that the model has not \(first conv1.weight\)", nn.Linear(3, 4))
    shapes = r"conv1.weight is \(16, 3, 3, 3\) in the file and \(16, 1, 3, 3\)"
    check_refused(tmp_path / "w.pt", shapes, fresh(in_channels=1))


def test_no_file(tmp_path: Path) -> None:
    check_refused(tmp_path / "absent.pt", "There is no weights file .*absent.pt")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_truncated(tmp_path: Path, state: dict[str, torch.Tensor], suffix: str, share: float) -> None:
    path = tmp_path / f"w.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(state, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    check_refused(path, rf"^w.{suffix} is damaged, truncated or not a weights file")


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(50), bytes(99)], ids=["text", "png", "0"])
def test_not_a_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    check_refused(tmp_path / "w.pt", "w.pt is damaged")


@pytest.mark.parametrize("value", [{"epoch": 3}, [1, 2], {}, {"state_dict": {"a": 1}}])
def test_holds_no_tensors(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "w.pt")
    check_refused(tmp_path / "w.pt", "w.pt is not a checkpoint: it holds no tensors by name")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    check_refused(tmp_path / "w.pt", "holds Python objects beside its tensors")
