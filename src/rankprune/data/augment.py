"""Pure functions on whole batches of images (N, C, H, W) of bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Crops(NamedTuple):
    """For each image the corner of its crop in the padded image, and whether it is mirrored."""

    top: Tensor
    left: Tensor
    mirror: Tensor

    def part(self, which: slice) -> Crops:
        return Crops(self.top[which], self.left[which], self.mirror[which])


def draw_crops(count: int, pad: int, generator: torch.Generator) -> Crops:
    corners = torch.randint(2 * pad + 1, (2, count), generator=generator)
    return Crops(corners[0], corners[1], torch.rand(count, generator=generator) < 0.5)


def crop_and_mirror(images: Tensor, crops: Crops, pad: int) -> Tensor:
    """Pad with black, take each image's crop of the old size, mirror it left to right where asked."""
    count, channels, height, width = images.shape
    rows = crops.top[:, None] + torch.arange(height)
    columns = torch.arange(width)
    columns = crops.left[:, None] + torch.where(crops.mirror[:, None], columns.flip(0), columns)
    # One gather over flattened pixels does crop and mirror for the whole batch.
    pixels = (rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]).view(count, 1, -1)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, pixels.expand(-1, channels, -1)).view_as(images)


def halve(images: Tensor) -> Tensor:
    """Mean of each 2x2 square, rounded to the nearest byte."""
    count, channels, height, width = images.shape
    squares = images.view(count, channels, height // 2, 2, width // 2, 2)
    return ((squares.sum(dim=(3, 5), dtype=torch.int16) + 2) // 4).to(torch.uint8)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes to floats of the given per-channel mean and standard deviation (which are of images in [0, 1])."""
    return images.float().sub_(255 * mean.view(-1, 1, 1)).div_(255 * std.view(-1, 1, 1))
