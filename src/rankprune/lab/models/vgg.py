"""VGG with BatchNorm and one linear classifier, for small images (Simonyan & Zisserman 2015, table 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import register_model

# Channels of the convolutions of each stage; a max-pool stands between stages.
CONFIG_E = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)
SMALL = ((32, 32), (64, 64), (128, 128), (256, 256))


class VGG(nn.Module):
    def __init__(self, stages: Sequence[Sequence[int]], num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, stage in enumerate(stages):
            if i:
                layers.append(nn.MaxPool2d(2))
            for channels in stage:
                # BatchNorm follows, so a bias would be taken away again by its mean.
                conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
                layers += [conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
                in_channels = channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(in_channels, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        # At 32x32 VGG-19 ends on 2x2 pixels, where this mean is the average pool of the pruning tables.
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))


@register_model("cifar-vgg19")
def cifar_vgg19(num_classes: int, in_channels: int) -> VGG:
    return VGG(CONFIG_E, num_classes, in_channels)


@register_model("vgg-small")
def vgg_small(num_classes: int, in_channels: int) -> VGG:
    """About 1.2 M weights and 13 M multiplications at 16x16: minutes of training on a CPU."""
    return VGG(SMALL, num_classes, in_channels)


@register_model("vgg-small-half")
def vgg_small_half(num_classes: int, in_channels: int) -> VGG:
    """Half as wide, a quarter of the weights."""
    return VGG([[c // 2 for c in stage] for stage in SMALL], num_classes, in_channels)


@register_model("vgg-small-double")
def vgg_small_double(num_classes: int, in_channels: int) -> VGG:
    """Twice as wide, four times the weights."""
    return VGG([[c * 2 for c in stage] for stage in SMALL], num_classes, in_channels)
