"""Convolutions of sequences, transposed convolutions and resampling against torch."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from _agree import agree
from torch import nn


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2, "stride": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": 4, "stride": 2, "padding": 1}, {"kernel_size": (3, 5), "stride": (1, 3), "padding": (0, 2)},
        {"kernel_size": 3, "stride": 2, "dilation": 2, "bias": False}, {"kernel_size": 3, "groups": 2, "stride": 2},
        {"kernel_size": 2, "stride": 3, "output_padding": 1},
    ],
)  # fmt: skip
def test_transposed_convolutions(options):
    agree(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, **options), nn.ReLU()), 3, 5, 9)


@pytest.mark.parametrize("length", [16, 37])
def test_sequences(length):
    module = nn.Sequential(
        nn.Conv1d(3, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3, padding="same", dilation=2),
        nn.BatchNorm1d(8), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(8, 12, 3, padding=1, groups=4), nn.AvgPool1d(2, 1),
        nn.ConvTranspose1d(12, 5, 4, 2, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(1), nn.Linear(5, 7),
    )  # fmt: skip
    for layer in module:
        if isinstance(layer, nn.BatchNorm1d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    agree(module, 3, length)


@pytest.mark.parametrize("size", [2, (3, 4), (11, 1), (5, 7)])
def test_adaptive_averages_of_uneven_windows(size):
    agree(nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(size), nn.Flatten(1), nn.LazyLinear(5)), 3, 11, 7)


class Resize(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return F.relu(self.function(self.conv(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, (13, 11)),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: F.interpolate(x, (13, 5), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=(1.5, 0.5), mode="bilinear"),
        lambda x: F.interpolate(x.flatten(2), 31, mode="linear"), lambda x: F.interpolate(x.flatten(2), scale_factor=3),
    ],
)  # fmt: skip
def test_resampling(function):
    agree(Resize(function), 3, 6, 9)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv3d(3, 4, 3, padding=1),
        nn.Conv3d(4, 6, (2, 3, 1), stride=(2, 1, 2), padding=(1, 0, 2), groups=2),
        nn.Conv3d(3, 4, (2, 1, 3), dilation=(3, 1, 2), bias=False),
        nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.MaxPool3d(2)),
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.MaxPool3d((3, 2, 3), (1, 2, 3), (1, 0, 1), ceil_mode=True)),
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.MaxPool3d((2, 3, 1), 1, dilation=(3, 2, 1))),
    ],
)
def test_convolutions_of_volumes(module):
    first = module[0] if isinstance(module, nn.Sequential) else module
    agree(module, first.in_channels, 5, 6, 9, batches=(1, 3))
