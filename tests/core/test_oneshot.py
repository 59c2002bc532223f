from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch, cnn, vit


@pytest.mark.parametrize("distribution", ["global", "lamp", "uniform", "er", "erk"])
@pytest.mark.parametrize("method", ["magnitude", "random"])
def test_prune_is_exact(method: str, distribution: str) -> None:
    model = cnn()
    report = rp.prune(model, method, sparsity=0.93, distribution=distribution, seed=2)
    assert report.kept == round(2008 * (1 - 0.93)) == sum(int((p != 0).sum()) for p in model.parameters() if p.ndim > 1)
    if distribution == "uniform":
        assert all(layer.sparsity == pytest.approx(0.93, abs=1 / layer.total) for layer in report.layers)
    text = str(report)
    assert "all prunable weights" in text
    assert "92.9781 %" in text


def test_zeros_among_what_stays_are_said() -> None:
    model = cnn()
    rp.prune(model, sparsity=0.98)
    with pytest.warns(UserWarning, match="161 of the 201 weights kept are 0, because the model was sparser than that before"):
        rp.prune(model, sparsity=0.9)


def test_dense_layers_do_not_count() -> None:
    model = cnn()
    before = model[0].weight.detach().clone()
    report = rp.prune(model, sparsity=0.5, dense=["0", nn.Linear])
    assert [layer.name for layer in report.layers] == ["3.weight"]
    assert report.kept == 576
    assert torch.equal(model[0].weight, before)


def test_sensitivity_cuts_one_layer_at_a_time_and_restores() -> None:
    model = vit()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    total = sum(p.numel() for p in model.parameters())

    def nonzero(net: nn.Module) -> float:
        return sum(int((p != 0).sum()) for p in net.parameters())

    found = rp.sensitivity(model, nonzero, [0.5, 0.9])
    assert "block.self_attn.in_proj_weight" in found
    zeros = sum(int((v == 0).sum()) for v in before.values())
    for name, row in found.items():
        size = before[name].numel()
        assert row == {s: total - zeros - (size - round(size * (1 - s))) for s in (0.5, 0.9)}
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_recalibrate_is_the_average_over_the_batches() -> None:
    model = cnn()
    model[0].weight.data.mul_(3.0)
    model.eval()
    batches = [batch(i) for i in range(4)]
    rp.recalibrate(model, batches)
    with torch.no_grad():
        maps = [model[0](x) for x, _ in batches]
    mean = torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0)
    variance = torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0)
    assert torch.allclose(model[1].running_mean, mean, atol=1e-6)
    assert torch.allclose(model[1].running_var, variance, atol=1e-5)
    assert model[1].momentum == 0.1
    assert not model[1].training


def test_recalibrate_on_nothing_leaves_the_statistics() -> None:
    model = cnn()
    rp.recalibrate(model, [batch(1)])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    spent = iter([batch(1)])
    next(spent)
    for loader, batches in ((spent, None), ([batch(2)], 0)):
        with pytest.raises(ValueError, match="no batch"):
            rp.recalibrate(model, loader, batches)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_save_and_load(tmp_path: Path) -> None:
    model = cnn()
    rp.prune(model, sparsity=0.9)
    rp.save(model, tmp_path / "m.sparse.safetensors")
    other = cnn(seed=7)
    state = rp.load(tmp_path / "m.sparse.safetensors", other)
    for key, value in model.state_dict().items():
        assert torch.equal(state[key], value)
        assert torch.equal(other.state_dict()[key], value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.sparse.safetensors"]  # no temporary file is left
    first = (tmp_path / "m.sparse.safetensors").read_bytes()
    for _ in range(5):
        rp.save(other, tmp_path / "m.sparse.safetensors")
        assert (tmp_path / "m.sparse.safetensors").read_bytes() == first


def test_tied_weights_survive_a_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    rp.save(model, tmp_path / "m")
    assert torch.equal(rp.load(tmp_path / "m")["1.weight"], model[0].weight)
