"""Pure functions on whole batches of images (N, C, H, W) of bytes; and timm's augmentations, made repeatable."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankprune._util import need

from .errors import DataError


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


def reseed(seed: int) -> None:
    """All of torch's, NumPy's and Python's global generators, which libraries draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block the three CPU generators start from `seed`; after it they are as they were."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which asks for a GPU in each worker
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def rand_augment(policy: str, size: int, mean: Sequence[float]) -> Any:
    """timm's RandAugment of Pillow images: "rand-m9-mstd0.5-inc1" is DeiT's."""
    library = need("timm.data.auto_augment", "vision", "RandAugment")
    # As timm's own training does: shifts up to 0.45 of the image, what they uncover in the mean colour.
    settings = {"translate_const": int(size * 0.45), "img_mean": tuple(min(255, round(255 * m)) for m in mean)}
    if not policy.startswith("rand-"):
        raise DataError(f"rand_augment={policy!r} is no policy of timm's RandAugment: rand-m9-mstd0.5-inc1 is one.")
    try:
        return library.rand_augment_transform(policy, settings)
    except (AssertionError, ValueError, KeyError) as error:
        raise DataError(f"rand_augment={policy!r} is not understood by timm ({type(error).__name__}).") from None


def random_erasing(probability: float) -> Any:
    """timm's random erasing of normalised images, by noise, as DeiT has it."""
    return need("timm.data.random_erasing", "vision", "Random erasing").RandomErasing(
        probability, mode="pixel", device="cpu"
    )


def mixer(mixup: float, cutmix: float, prob: float, switch_prob: float, smoothing: float, classes: int) -> Any:
    """timm's Mixup: (images, labels) to (mixed images, soft labels). It draws from NumPy's global generator."""
    return need("timm.data.mixup", "vision", "mixup and cutmix").Mixup(
        mixup, cutmix, prob=prob, switch_prob=switch_prob, label_smoothing=smoothing, num_classes=classes
    )
