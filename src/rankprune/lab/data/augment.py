"""Augmentation of uint8 batches (N, C, H, W) by pure functions, and timm's augmentations made reproducible."""

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

CPU = torch.device("cpu")


class Crops(NamedTuple):
    """For each image of a batch, the corner of its crop in the padded image and whether it is flipped; each (N,)."""

    top: Tensor
    left: Tensor
    mirror: Tensor

    def part(self, which: slice) -> Crops:
        """Select the crops of some images.

        Args:
            which: Their positions in the batch.

        Returns:
            Their crops.
        """
        return Crops(self.top[which], self.left[which], self.mirror[which])


def draw_crops(count: int, pad: int, generator: torch.Generator) -> Crops:
    """Draw the random crops and flips of a batch.

    Args:
        count: Number of images.
        pad: Padding on each side, in pixels.
        generator: Source of randomness.

    Returns:
        One crop per image.
    """
    corners = torch.randint(2 * pad + 1, (2, count), generator=generator)
    return Crops(corners[0], corners[1], torch.rand(count, generator=generator) < 0.5)


def crop_and_mirror(images: Tensor, crops: Crops, pad: int) -> Tensor:
    """Pad with zeros, crop each image to its old size, and flip it horizontally where drawn.

    Args:
        images: uint8, (N, C, H, W).
        crops: One crop per image.
        pad: Padding on each side, in pixels.

    Returns:
        The augmented images, of the same shape.
    """
    count, channels, height, width = images.shape
    rows = crops.top[:, None] + torch.arange(height)  # (N, H)
    columns = torch.arange(width)
    columns = crops.left[:, None] + torch.where(crops.mirror[:, None], columns.flip(0), columns)  # (N, W)
    # One gather over flattened pixels crops and flips the whole batch.
    pixels = (rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]).view(count, 1, -1)  # (N, 1, H*W)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)  # (N, C, (H + 2 pad) * (W + 2 pad))
    return padded.gather(2, pixels.expand(-1, channels, -1)).view_as(images)


def halve(images: Tensor) -> Tensor:
    """Downsample by 2: the mean of each 2x2 square, rounded to the nearest integer.

    Args:
        images: uint8, (N, C, H, W), with even H and W.

    Returns:
        uint8, (N, C, H/2, W/2).
    """
    count, channels, height, width = images.shape
    squares = images.view(count, channels, height // 2, 2, width // 2, 2)
    return ((squares.sum(dim=(3, 5), dtype=torch.int16) + 2) // 4).to(torch.uint8)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scale uint8 images to floats and normalize each channel.

    Args:
        images: uint8, (N, C, H, W).
        mean: Mean per channel of images in [0, 1], (C,).
        std: Standard deviation per channel of images in [0, 1], (C,).

    Returns:
        float32, (N, C, H, W).
    """
    return images.float().sub_(255 * mean.view(-1, 1, 1)).div_(255 * std.view(-1, 1, 1))


def reseed(seed: int, device: torch.device = CPU) -> None:
    """Seed the global generators of torch, NumPy and Python, which libraries draw from.

    Args:
        seed: The seed.
        device: Where the training runs. On a CPU the generators of GPUs are left alone: `torch.manual_seed` keeps a
            stack trace for each of them, which takes longer than an optimizer step of a small network.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the three global CPU generators within the block, and restore their states after it.

    Args:
        seed: The seed.

    Yields:
        Nothing.
    """
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    reseed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def rand_augment(policy: str, size: int, mean: Sequence[float]) -> Any:
    """Create timm's RandAugment for Pillow images.

    Args:
        policy: The policy; DeiT uses "rand-m9-mstd0.5-inc1".
        size: Height and width of the images.
        mean: Mean per channel of images in [0, 1].

    Returns:
        The transform.

    Raises:
        DataError: timm does not accept the policy.
    """
    library = need("timm.data.auto_augment", "vision", "RandAugment")
    # The settings of timm's training script: translations up to 0.45 of the image, filled with the mean colour.
    settings = {"translate_const": int(size * 0.45), "img_mean": tuple(min(255, round(255 * m)) for m in mean)}
    if not policy.startswith("rand-"):
        raise DataError(f"rand_augment={policy!r} is not a RandAugment policy of timm: rand-m9-mstd0.5-inc1 is one.")
    try:
        return library.rand_augment_transform(policy, settings)
    except (AssertionError, ValueError, KeyError) as error:
        raise DataError(f"rand_augment={policy!r} is not accepted by timm ({type(error).__name__}).") from None


def random_erasing(probability: float) -> Any:
    """Create timm's random erasing with noise, for normalized images, as in DeiT.

    Args:
        probability: Probability of erasing a part of an image.

    Returns:
        The transform.
    """
    return need("timm.data.random_erasing", "vision", "Random erasing").RandomErasing(
        probability, mode="pixel", device="cpu"
    )


def mixer(mixup: float, cutmix: float, prob: float, switch_prob: float, smoothing: float, classes: int) -> Any:
    """Create timm's Mixup, which maps (images, labels) to (mixed images, soft labels).

    It draws from NumPy's global generator.

    Args:
        mixup: Alpha of mixup; 0 turns it off.
        cutmix: Alpha of cutmix; 0 turns it off.
        prob: Probability of mixing a batch.
        switch_prob: Probability of cutmix when both are on.
        smoothing: Label smoothing of the soft labels.
        classes: Number of classes.

    Returns:
        timm's transform.
    """
    return need("timm.data.mixup", "vision", "mixup and cutmix").Mixup(
        mixup, cutmix, prob=prob, switch_prob=switch_prob, label_smoothing=smoothing, num_classes=classes
    )
