"""Other engines behind one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankprune.lab.bench.peers import PEERS, Absent, joined


def test_several_outputs_are_one_array() -> None:
    assert joined(torch.tensor([[1.0, 2.0]])).tolist() == [[1, 2]]
    assert joined({"a": torch.tensor([[1.0]]), "b": (torch.tensor([2.0, 3.0]),)}).tolist() == [1, 2, 3]
    assert joined([np.array([4.0])]).tolist() == [4]


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


def test_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    seconds, got = PEERS["onnxruntime"](model, x, 1, tmp_path, None)(x.numpy())
    assert seconds > 0
    np.testing.assert_allclose(got, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    (tmp_path / "other").mkdir()
    with pytest.raises(Absent, match="torch cannot export Branches to ONNX"):
        PEERS["onnxruntime"](Branches().eval(), x, 1, tmp_path / "other", None)
