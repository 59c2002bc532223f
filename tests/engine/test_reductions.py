"""Sums, means, norms, maxima and normalisations against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from _agree import agree
from torch import nn


class Call(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(3, 6, 1)

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mean((2, 3)), lambda x: x.sum((2, 3), keepdim=True), lambda x: x.sum(1), lambda x: x.mean(-1),
        lambda x: x.sum((1, 3)), lambda x: x.mean((1, 2, 3)), lambda x: x.flatten(2).sum(-1),
        lambda x: x.flatten(2).transpose(1, 2).mean(1), lambda x: torch.linalg.vector_norm(x, dim=1),
        lambda x: torch.linalg.vector_norm(x, 1, dim=(2, 3), keepdim=True), lambda x: F.normalize(x, dim=1),
        lambda x: F.normalize(x.flatten(2), dim=-1), lambda x: x.permute(0, 2, 3, 1).sum(-1, keepdim=True) * x[:, :1, 0, :1, None],
        lambda x: x.amax(1), lambda x: x.amax((1, 3), keepdim=True), lambda x: x.amax((1, 2, 3)), lambda x: x.permute(1, 0, 3, 2).amax(2).transpose(0, 1),
    ],
)  # fmt: skip
def test_reductions(function):
    agree(Call(function), 3, 7, 9)


@pytest.mark.parametrize(
    "module",
    [nn.GroupNorm(3, 6), nn.GroupNorm(1, 6, affine=False), nn.GroupNorm(6, 6), nn.InstanceNorm2d(6, affine=True)],
)
def test_norms_by_groups(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    agree(nn.Sequential(nn.Conv2d(3, 6, 3), module, nn.ReLU()), 3, 9, 12)
    agree(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(2), nn.InstanceNorm1d(6)), 3, 9, 12)
