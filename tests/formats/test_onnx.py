"""ONNX files: what is written, what ONNX Runtime makes of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from rankprune.formats.onnx import Disagreement, difference, save_onnx, sparsify  # noqa: E402


def model_of(*tensors: Any) -> Any:
    """A graph that has these arrays as initializers and nothing else."""
    graph = onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(a, n) for n, a in tensors])
    return onnx.helper.make_model(graph)


def test_sparse_initializers_by_hand() -> None:
    weight = np.zeros((2, 3, 4), np.float32)
    weight[0, 1, 2], weight[1, 2, 3], weight[1, 0, 0] = 5.0, -0.0, 7.0
    third = np.zeros(9, np.float32)
    third[:3] = 1  # 3 · 12 bytes = 9 · 4: no gain
    proto = model_of(("w", weight), ("third", third), ("none", np.zeros(9, np.float32)), ("steps", np.zeros(50, np.int64)))
    sparsify(proto)
    assert [t.name for t in proto.graph.initializer] == ["third", "none", "steps"]
    (sparse,) = proto.graph.sparse_initializer
    assert sparse.values.name == "w"
    assert list(sparse.dims) == [2, 3, 4]
    indices, values = onnx.numpy_helper.to_array(sparse.indices), onnx.numpy_helper.to_array(sparse.values)
    assert indices.tolist() == [6, 12, 23]
    assert indices.dtype == np.int64
    assert values.tolist() == [5, 7, 0]
    assert np.signbit(values[2])


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 64, 3)
        with torch.no_grad():
            self.conv.weight[torch.rand_like(self.conv.weight) < 0.95] = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.conv(x)
        return {"large": 1000 * x.relu(), "small": x.mean((2, 3))}


@pytest.mark.parametrize("sparse", [False, True])
def test_a_network_with_two_outputs(sparse: bool, tmp_path: Path) -> None:
    model = TwoOutputs().eval()
    assert save_onnx(model, torch.zeros(1, 3, 8, 8), tmp_path / "m.onnx", sparse_initializer=sparse) < 1e-5
    assert ((tmp_path / "m.onnx").stat().st_size < 4 * model.conv.weight.numel()) is sparse
    # Each output counts by its own scale: an error that only the small one has is seen.
    other = TwoOutputs().eval()
    other.forward = lambda x: {"large": model(x)["large"], "small": 1.5 * model(x)["small"]}  # type: ignore[method-assign]
    found = difference(other, torch.zeros(1, 3, 8, 8), (tmp_path / "m.onnx").read_bytes())
    assert found == pytest.approx(1 / 3, rel=1e-3)


class Lots(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


def test_what_differs_from_torch_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"old")
    with pytest.raises(Disagreement, match=r"^[^\n]*ONNX Runtime differs from torch by [^\n]*$"):
        save_onnx(Lots().eval(), torch.zeros(1, 4), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == b"old"


def test_what_torch_cannot_export_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^torch cannot export Branches to ONNX \([^\n]*\): [^\n]*$"):
        save_onnx(Branches().eval(), torch.zeros(1, 4), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_model_in_training_mode_is_refused_and_unchanged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match=r"evaluation mode: call model\.eval\(\) first"):
        save_onnx(model, torch.zeros(1, 3, 8, 8), tmp_path / "m.onnx")
    assert torch.equal(model[1].running_mean, before)
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_double_precision(tmp_path: Path) -> None:
    model = nn.Linear(4, 2).double().eval()
    assert save_onnx(model, torch.zeros(1, 4, dtype=torch.float64), tmp_path / "m.onnx") < 1e-12
