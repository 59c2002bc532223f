"""VGG with BatchNorm, for small images (Simonyan & Zisserman 2015, table 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import register_model

# Channels of the convolutions in each stage; max-pooling separates stages.
CONFIG_E = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)
SMALL = ((32, 32), (64, 64), (128, 128), (256, 256))


class VGG(nn.Module):
    """A VGG with BatchNorm: stages of 3x3 convolutions, then a classifier.

    Args:
        stages: Channels of the convolutions in each stage.
        num_classes: Number of classes.
        in_channels: Input channels.
        hidden: Width of two hidden linear layers on 3x3 pixels, as in the paper. 0: global average pooling and one
            linear layer.
    """

    def __init__(
        self, stages: Sequence[Sequence[int]], num_classes: int = 10, in_channels: int = 3, hidden: int = 0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, stage in enumerate(stages):
            if i:
                layers.append(nn.MaxPool2d(2))
            for channels in stage:
                # Without a bias, because the following BatchNorm would subtract it again.
                conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
                layers += [conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
                in_channels = channels
        self.features = nn.Sequential(*layers)
        self.side = 3 if hidden else 1
        self.classifier: nn.Module = nn.Linear(hidden or in_channels, num_classes)
        if hidden:
            first, second = nn.Linear(9 * in_channels, hidden), nn.Linear(hidden, hidden)
            self.classifier = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), self.classifier)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: (batch, in_channels, H, W).

        Returns:
            Logits, (batch, num_classes).
        """
        # At 32x32, VGG-19 ends with 2x2 pixels, where this is the average pooling used in the pruning literature.
        x = F.adaptive_avg_pool2d(self.features(x), self.side)
        return self.classifier(torch.flatten(x, 1))


@register_model("cifar-vgg19")
def cifar_vgg19(num_classes: int, in_channels: int) -> VGG:
    """Create a VGG-19 for small images.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.

    Returns:
        The model.
    """
    return VGG(CONFIG_E, num_classes, in_channels)


@register_model("vgg-small")
def vgg_small(num_classes: int, in_channels: int) -> VGG:
    """Create a small VGG: about 1.2 M weights and 13 M MACs at 16x16, which trains in minutes on a CPU.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.

    Returns:
        The model.
    """
    return VGG(SMALL, num_classes, in_channels)


@register_model("vgg-small-half")
def vgg_small_half(num_classes: int, in_channels: int) -> VGG:
    """Create a small VGG of half the width, with a quarter of the weights.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.

    Returns:
        The model.
    """
    return VGG([[c // 2 for c in stage] for stage in SMALL], num_classes, in_channels)


@register_model("vgg-small-double")
def vgg_small_double(num_classes: int, in_channels: int) -> VGG:
    """Create a small VGG of twice the width, with four times the weights.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.

    Returns:
        The model.
    """
    return VGG([[c * 2 for c in stage] for stage in SMALL], num_classes, in_channels)


@register_model("vgg-small-fc")
def vgg_small_fc(num_classes: int, in_channels: int) -> VGG:
    """Create a small VGG with two hidden linear layers of 1024 in place of the last stage.

    It has 2.5 M weights, most of them in linear layers, as in VGG-16.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.

    Returns:
        The model.
    """
    return VGG(SMALL[:3], num_classes, in_channels, hidden=1024)
