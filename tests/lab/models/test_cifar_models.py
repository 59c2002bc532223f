from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rankprune.lab.models import create_model, list_models


def prunable(model: nn.Module) -> list[int]:
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return [m.weight.numel() for m in layers if m.weight.ndim > 1]


def macs(model: nn.Module, size: int) -> int:
    total = 0

    def count(module: nn.Module, _: object, out: torch.Tensor) -> None:
        nonlocal total
        total += module.weight.numel() * out[0, 0].numel()  # type: ignore[union-attr,operator]

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    model.eval()(torch.zeros(1, 3, size, size))
    return total


@pytest.mark.parametrize(
    ("name", "weights", "tensors", "total"),
    [
        # The pruning tables' networks: methods and papers count exactly these.
        ("cifar-vgg19", 20_024_000, 17, 20_024_000 + 11_008 + 10),
        ("cifar-resnet32x2", 1_855_584, 34, 1_855_584 + 4_928 + 10),
        ("cifar-resnet32", 464_432, 34, 466_906),
        ("cifar-resnet20-a", 268_336, 20, 269_722),
        ("cifar-resnet32-a", 461_872, 32, 464_154),
        ("cifar-resnet44-a", 655_408, 44, 658_586),
        ("cifar-resnet56-a", 848_944, 56, 853_018),
        ("vgg-small", 1_173_856, 9, 1_175_786),
        ("vgg-small-half", 294_320, 9, 295_290),
        ("vgg-small-double", 4_688_576, 9, 4_692_426),
        ("vgg-small-fc", 2_525_024, 9, 2_527_978),
    ],
)
def test_counts(name: str, weights: int, tensors: int, total: int) -> None:
    model = create_model(name)
    assert sum(prunable(model)) == weights
    assert len(prunable(model)) == tensors
    assert sum(p.numel() for p in model.parameters()) == total


@pytest.mark.parametrize(("name", "millions"), [("cifar-vgg19", 398.1), ("cifar-resnet32x2", 275.6)])
def test_multiplications_at_32(name: str, millions: float) -> None:
    assert macs(create_model(name), 32) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("name", [name for name in list_models() if name not in ("vit-tiny-cpu", "maskrcnn-resnet50-fpn")])
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (3, 16), (1, 28), (1, 14)])
def test_every_image_size_of_the_data(name: str, channels: int, size: int) -> None:
    if name == "cifar-vgg19" and size == 14:
        pytest.skip("four max-pools need 16 pixels")
    model = create_model(name, num_classes=7, in_channels=channels)
    out = model(torch.randn(2, channels, size, size))
    assert out.shape == (2, 7)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_option_a_shortcut_pads_channels_on_both_sides() -> None:
    block = create_model("cifar-resnet20-a").layer2[0]  # type: ignore[index,union-attr]
    x = torch.randn(1, 16, 4, 4)
    out = block.shortcut(x)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].abs().sum() == out[:, 24:].abs().sum() == 0


def test_block_is_residual() -> None:
    """With its second BatchNorm at zero, a block is the ReLU of its shortcut."""
    block = create_model("cifar-resnet32x2").eval().layer2[0]  # type: ignore[index,union-attr]
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 32, 8, 8)
    expected = F.relu(block.shortcut[1](F.conv2d(x, block.shortcut[0].weight, stride=2)))
    torch.testing.assert_close(block(x), expected)


def test_vgg19_is_torchvisions_up_to_the_classifier() -> None:
    """Config E: the same layers as vgg19_bn but its biases and its last max-pool."""
    models = pytest.importorskip("torchvision.models")
    ours, theirs = create_model("cifar-vgg19").eval(), models.vgg19_bn(weights=None).eval()
    convs = [m for m in theirs.features if isinstance(m, nn.Conv2d)]
    mine = [m for m in ours.features if isinstance(m, nn.Conv2d)]  # type: ignore[union-attr]
    for a, b in zip(mine, convs, strict=True):
        b.weight.data.copy_(a.weight)
        nn.init.zeros_(b.bias)
    x = torch.randn(2, 3, 32, 32)
    pooled = F.avg_pool2d(theirs.features[:-1](x), 2).flatten(1)
    torch.testing.assert_close(ours(x), ours.classifier(pooled))  # type: ignore[operator]
