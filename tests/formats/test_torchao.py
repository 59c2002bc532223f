"""Zeros stay zeros through torchao's int8 quantisation of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rankprune as rp

quantization = pytest.importorskip("torchao.quantization")


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()


@pytest.mark.parametrize("through_a_file", [False, True])
def test_int8_weights_keep_their_zeros(through_a_file: bool, tmp_path: Path) -> None:
    model = net()
    rp.prune(model, sparsity=0.9)
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim == 2}
    if through_a_file:
        rp.save(model, tmp_path / "m")
        model = net(1)
        rp.load(tmp_path / "m", model)
    x = torch.randn(32, 64)
    want = model(x).detach()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    for name, weight in weights.items():
        found = model.get_parameter(name)
        assert type(found) not in (nn.Parameter, torch.Tensor)  # it is torchao's
        back = found.dequantize()
        assert torch.equal(back[weight == 0], torch.zeros(int((weight == 0).sum())))
        # Symmetric, a scale a row: off by half a step of 1/127 of the row's largest at most.
        step = weight.abs().amax(1, keepdim=True) / 127
        assert bool(((back - weight).abs() <= 0.51 * step + 1e-8).all())
    assert torch.allclose(model(x), want, atol=0.05 * float(want.abs().max()))
