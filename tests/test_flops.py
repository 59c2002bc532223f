from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from rankprune import flops

IMAGES = 1_281_167


def erk(shapes: dict[str, tuple[int, ...]], density: float) -> dict[str, float]:
    """Reference: density of a layer proportional to sum(dims)/prod(dims), layers above 1 made dense, repeated."""
    raw = {name: sum(s) / math.prod(s) for name, s in shapes.items()}
    size = {name: math.prod(s) for name, s in shapes.items()}
    full: set[str] = set()
    while True:
        budget = density * sum(size.values()) - sum(size[n] for n in full)
        eps = budget / sum(raw[n] * size[n] for n in size if n not in full)
        top = max(raw[n] for n in size if n not in full)
        if eps * top <= 1:
            return {n: 1.0 if n in full else eps * raw[n] for n in size}
        full |= {n for n in size if n not in full and raw[n] == top}


@pytest.fixture(scope="module")
def resnet50() -> tuple[nn.Module, flops.FlopReport]:
    model = pytest.importorskip("torchvision").models.resnet50(weights=None)
    return model, flops.count(model, torch.zeros(1, 3, 224, 224))


def test_resnet50_dense(resnet50: tuple[nn.Module, flops.FlopReport]) -> None:
    _, report = resnet50
    assert report.dense == 4_089_184_256
    assert report.at({}).ratio == 1
    assert report.ratio == pytest.approx(1, abs=1e-6)  # an initial weight may happen to be 0
    assert len(report.rows) == 54
    assert f"{report.dense:,}" in str(report)
    assert flops.dense_training_flops(report.dense, IMAGES * 100) == pytest.approx(3.143e18, rel=2e-4)


@pytest.mark.parametrize(
    ("density", "by_erk", "uniform"), [(0.2, 0.414, 0.223), (0.1, 0.242, 0.126), (0.05, 0.122, 0.077)]
)
def test_resnet50_sparse(
    resnet50: tuple[nn.Module, flops.FlopReport], density: float, by_erk: float, uniform: float
) -> None:
    _, report = resnet50
    densities = erk({r.name: r.shape for r in report.rows}, density)
    assert report.at(densities).ratio == pytest.approx(by_erk, abs=5e-4)
    stem_dense = {r.name: density for r in report.rows if r.name != "conv1.weight"}
    assert report.at(stem_dense).ratio == pytest.approx(uniform, abs=5.5e-4)


def test_resnet50_svd_and_rpg_training(resnet50: tuple[nn.Module, flops.FlopReport]) -> None:
    model, report = resnet50
    svd = flops.svd_flops(model, updates=1127)
    assert svd == pytest.approx(5.07e15, rel=1e-3)
    assert flops.svd_flops([(2, 3), (4, 1, 3, 3)]) == 2 * 2 * 9 + 11 * 27 + 2 * 4 * 81 + 11 * 729
    # RPG at 90 %: exponential density over 90 % of training, cost falling to 0.155 as a power of it
    course = [0.155 ** min(t / 9000, 1) for t in range(10_000)]
    extra = svd / flops.dense_training_flops(report.dense, IMAGES * 100)
    assert sum(course) / len(course) == pytest.approx(0.4234, abs=1e-4)
    assert flops.training_flops("rpg", course, update_end=0.9, extra=extra) == pytest.approx(0.427, abs=5e-4)


def test_training_cost_by_method() -> None:
    cost = flops.training_flops
    assert cost("dense", 0.1) == 1
    assert cost("static", 0.1) == cost("set", 0.1) == cost("snip", 0.1) == pytest.approx(0.1)
    assert cost("rigl", 0.1, every=100) == pytest.approx((3 * 0.1 * 100 + 2 * 0.1 + 1) / 101 / 3)
    assert cost("rigl", 0.1, every=10**9) == pytest.approx(0.1)
    assert cost("rigl", 1.0) == cost("snfs", 1.0) == cost("rpg", 1.0) == pytest.approx(1)
    assert cost("snfs", 0.242) == pytest.approx(0.4947, abs=1e-4)
    assert cost("topkast", 0.1, backward=0.5) == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert cost("topkast", 0.1) == cost("snfs", 0.1)
    assert cost("acdc", [1.0] * 50 + [0.16] * 50) == pytest.approx(0.58)
    assert cost("gmp", [1.0, 0.5, 0.1, 0.1]) == pytest.approx(0.425)
    assert cost("rpg", [0.5, 0.1], every=10, update_end=0.5) == pytest.approx(0.3 + 0.5 * 0.5 / 30)
    with pytest.raises(ValueError, match="'nosuch'"):
        cost("nosuch", 0.1)


def test_linear_and_convolution_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(4 * 4 * 4, 5))
    report = flops.count(net, torch.zeros(1, 3, 8, 8))
    assert [(r.name, r.dense) for r in report.rows] == [("0.weight", 4 * 27 * 16), ("2.weight", 64 * 5)]
    assert flops.count(net, torch.zeros(2, 3, 8, 8)).dense == 2 * report.dense
    assert flops.count(nn.Linear(3, 2), torch.zeros(7, 5, 3)).dense == 6 * 35
    assert flops.count(nn.Conv1d(2, 3, 3), torch.zeros(2, 10)).dense == 18 * 8  # without a batch dimension


def test_groups_and_depthwise_count_the_weights_there_are() -> None:
    x = torch.zeros(1, 8, 5, 5)
    assert flops.count(nn.Conv2d(8, 8, 3, padding=1, groups=8), x).dense == 8 * 9 * 25
    assert flops.count(nn.Conv2d(8, 4, 3, padding=1, groups=2), x).dense == 4 * 4 * 9 * 25


def test_transposed_convolution_meets_its_inputs() -> None:
    report = flops.count(nn.ConvTranspose2d(6, 4, 4, stride=2, groups=2), torch.zeros(1, 6, 5, 7))
    assert report.dense == 6 * 2 * 16 * 35


def test_sparse_by_weights_masks_and_densities() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4))
    x = torch.zeros(3, 4)
    report = flops.count(net, x)
    assert (report.dense, report.sparse) == (72, 3 * 4 + 24)
    assert report.ratio == pytest.approx(0.5)
    masked = flops.count(net, x, masks={"1.weight": torch.tensor([[True, False, False, False], [False] * 4])})
    assert [r.sparse for r in masked.rows] == [12, 3]
    assert [r.sparse for r in report.at({"1.weight": 0.25}).rows] == [48, 6]
    for attempt in (lambda: flops.count(net, x, masks={"9": torch.ones(1)}), lambda: report.at({"9": 0.1})):
        with pytest.raises(KeyError, match="'9'"):
            attempt()
    assert not net[0]._forward_hooks


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.shared(self.shared(x)) + y)


def test_shared_layers_count_each_call_and_the_model_is_left_alone() -> None:
    net = Twice().train()
    net.norm.eval()
    net.shared.weight.grad = torch.ones(4, 4)
    x = torch.randn(2, 4)
    for example in ((x, x), {"x": x, "y": x}):
        report = flops.count(net, example)
        assert [(r.name, r.dense) for r in report.rows] == [("shared.weight", 2 * 2 * 16)]
    assert net.training
    assert not net.norm.training
    assert torch.equal(net.shared.weight.grad, torch.ones(4, 4))
    assert not net.norm.running_mean.any()


def test_attention_projections_are_counted() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    report = flops.count(attention, (x, x, x))
    assert {r.name: r.dense for r in report.rows} == {"in_proj_weight": 10 * 3 * 64, "out_proj.weight": 10 * 64}
    with torch.no_grad():
        attention.in_proj_weight[:8] = 0
    memory = torch.randn(2, 7, 8)  # queries meet 10 tokens, keys and values 14
    crossed = flops.count(attention, {"query": x, "key": memory, "value": memory})
    assert [(r.dense, r.sparse) for r in crossed.rows] == [(64 * (10 + 28), 64 * 28), (640, 640)]
    apart = nn.MultiheadAttention(8, 2, kdim=3, vdim=5, batch_first=True)
    report = flops.count(apart, (x, torch.randn(2, 7, 3), torch.randn(2, 7, 5)))
    assert [r.dense for r in sorted(report.rows, key=lambda r: r.name)] == [14 * 24, 640, 640, 14 * 40]


def test_positions_of_a_fused_projection() -> None:
    attention = nn.MultiheadAttention(6, 2)
    for tokens in (1, 2, 4, 6):
        x = torch.randn(tokens, 6)
        assert flops.positions(attention, (x, x, x)) == {"in_proj_weight": tokens, "out_proj.weight": tokens}
    queries, keys = torch.randn(2, 6), torch.randn(5, 6)
    assert flops.positions(attention, (queries, keys, keys)) == {"in_proj_weight": 4, "out_proj.weight": 2}


def test_the_fast_path_of_an_encoder_hides_nothing() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    report = flops.count(nn.TransformerEncoder(layer, 2, enable_nested_tensor=True), torch.randn(3, 4, 8))
    assert report.dense == 2 * 12 * (3 * 64 + 64 + 2 * 128)
    assert torch.backends.mha.get_fastpath_enabled()


def test_deit_small() -> None:
    model = pytest.importorskip("timm").create_model("deit_small_patch16_224")
    report = flops.count(model, torch.zeros(1, 3, 224, 224))
    assert sum(math.prod(r.shape) for r in report.rows) == 21_912_576
    assert report.dense == 196 * 294_912 + 197 * 12 * 1_769_472 + 384_000


def test_training_cost_is_known_for_every_method() -> None:
    for name in rp.list_methods():
        share = flops.training_flops(name, 0.1, backward=0.2)
        assert 0.1 <= share <= (2 * 0.1 + 1) / 3 + 1e-12, name  # between all sparse and a dense weight gradient each step
