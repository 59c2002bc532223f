"""ResNets for 32x32 images (He et al. 2016, section 4.2): depth 6n + 2, three stages of n basic blocks.

The shortcut between stages is either the paper's option A (subsampling and zero channels, no parameters) or a 1x1
convolution with BatchNorm, which the pruning literature uses, at twice the width for ResNet-32.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import register_model

Shortcut = Literal["pad", "conv"]


class PadShortcut(nn.Module):
    """Option A: take every second pixel, and pad zero channels equally before and after.

    Args:
        extra_channels: Number of zero channels.
    """

    def __init__(self, extra_channels: int) -> None:
        super().__init__()
        self.before = extra_channels // 2
        self.after = extra_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad.

        Args:
            x: (batch, C, H, W).

        Returns:
            (batch, C + extra_channels, H/2, W/2).
        """
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Args:
        in_channels: Input channels.
        channels: Output channels.
        stride: Stride of the first convolution.
        shortcut: Kind of shortcut where the stride is not 1.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 and shortcut == "pad":
            self.shortcut = PadShortcut(channels - in_channels)
        elif stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Transform a feature map.

        Args:
            x: (batch, in_channels, H, W).

        Returns:
            (batch, channels, H/stride, W/stride).
        """
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """A ResNet for small images.

    Args:
        depth: 6n + 2.
        width: Channels of the first stage.
        shortcut: Kind of shortcut between stages.
        num_classes: Number of classes.
        in_channels: Input channels.

    Raises:
        ValueError: The depth is not 6n + 2.
    """

    def __init__(
        self,
        depth: int,
        width: int = 16,
        shortcut: Shortcut = "conv",
        num_classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"A CIFAR ResNet has depth 6n + 2 with n >= 1, not {depth}.")
        self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(blocks, width, width, 1, shortcut)
        self.layer2 = self._stage(blocks, width, 2 * width, 2, shortcut)
        self.layer3 = self._stage(blocks, 2 * width, 4 * width, 2, shortcut)
        self.linear = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def _stage(blocks: int, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
        first = BasicBlock(in_channels, channels, stride, shortcut)
        return nn.Sequential(first, *(BasicBlock(channels, channels, 1, shortcut) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: (batch, in_channels, H, W).

        Returns:
            Logits, (batch, num_classes).
        """
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def _register(name: str, depth: int, width: int, shortcut: Shortcut) -> None:
    @register_model(name)
    def build(num_classes: int, in_channels: int) -> CifarResNet:
        return CifarResNet(depth, width, shortcut, num_classes, in_channels)


for _depth in (20, 32, 44, 56):
    _register(f"cifar-resnet{_depth}", _depth, 16, "conv")
    _register(f"cifar-resnet{_depth}-a", _depth, 16, "pad")
_register("cifar-resnet32x2", 32, 32, "conv")
