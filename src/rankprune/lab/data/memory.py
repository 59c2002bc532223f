"""A data set held in memory as uint8, augmented one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .augment import crop_and_mirror, draw_crops, halve, normalize
from .base import IGNORE, STATISTICS, Batch, DataModule
from .errors import DataError
from .sampling import Sampling, evenly, generator

_TEST_BATCH = 500


@dataclass(frozen=True)
class Images:
    """The uint8 images (N, C, H, W) and int64 labels (N,) of the two splits."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def limited(self, train: int | None, test: int | None) -> Images:
        """Keep only some images of each split, evenly spaced.

        Args:
            train: Number of training images to keep; None keeps all.
            test: Number of test images to keep; None keeps all.

        Returns:
            The smaller data set.
        """
        if train is None and test is None:
            return self
        first, second = evenly(len(self.train_labels), train), evenly(len(self.test_labels), test)
        return Images(
            self.train_images[first], self.train_labels[first], self.test_images[second], self.test_labels[second]
        )

    def held_out(self, count: int) -> Images:
        """Replace the test set by a part of the training set, which is no longer trained on.

        Args:
            count: Training images to hold out, evenly spaced over the set.

        Returns:
            The new data set.

        Raises:
            DataError: `count` is not a proper part of the training set.
        """
        size = len(self.train_labels)
        if not 0 < count < size:
            raise DataError(f"holdout={count} is not a part of the {size} training images: give from 1 to {size - 1}.")
        held_out = torch.zeros(size, dtype=torch.bool)
        held_out[evenly(size, count)] = True
        images, labels = self.train_images, self.train_labels
        return Images(images[~held_out], labels[~held_out], images[held_out], labels[held_out])

    def at_size(self, size: int | None, name: str) -> Images:
        """Return the images at their own size or at half of it.

        Args:
            size: Height and width in pixels; None keeps the size.
            name: Name of the data set, for the message.

        Returns:
            The resized data set.

        Raises:
            DataError: `size` is neither the images' own size nor half of it.
        """
        native = self.train_images.shape[-1]
        if size is None or size == native:
            return self
        if 2 * size != native:
            raise DataError(f"{name} comes at {native} or {native // 2} pixels, not {size}.")
        return Images(halve(self.train_images), self.train_labels, halve(self.test_images), self.test_labels)


class MemoryData(DataModule):
    """A data set held in memory. Training images get a random crop and flip, with a padding of 1/8 (4 at 32 pixels).

    Args:
        name: Name of the data set.
        images: Its images and labels.
        num_classes: Number of classes.
        sampling: Decides which samples form which batch.
        statistics: Data set whose mean and std normalize the images.
        augment: Augment the training images.
    """

    def __init__(
        self, name: str, images: Images, num_classes: int, sampling: Sampling, statistics: str, augment: bool
    ) -> None:
        channels, size = images.train_images.shape[1:3]
        super().__init__(name, num_classes, channels, size, sampling)
        self.images = images
        self.pad = size // 8 if augment else 0
        self.augment = augment
        self.mean, self.std = (torch.tensor(values) for values in STATISTICS[statistics])
        if len(self.mean) != channels:
            raise DataError(
                f"normalize={statistics!r} is for images of {len(self.mean)} channels and {name} has {channels}."
            )

    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """See `DataModule.train`.

        Args:
            epoch: Number of the epoch, from 0.
            start_batch: First batch to return.

        Yields:
            (images, labels) of this rank.
        """
        own = self.sampling.own
        for number, indices in self.sampling.train_batches(epoch, start_batch):
            mine = indices[own]
            images = self.images.train_images[mine]
            if self.augment:
                # Drawn for the whole step before taking this rank's part, so images do not depend on the world size.
                crops = draw_crops(len(indices), self.pad, generator(self.sampling.seed, epoch, number))
                images = crop_and_mirror(images, crops.part(own), self.pad)
            yield normalize(images, self.mean, self.std), self.images.train_labels[mine]

    def test(self) -> Iterator[Batch]:
        """See `DataModule.test`.

        Yields:
            (images, labels) of this rank; padding has the label `IGNORE`.
        """
        for indices in self.sampling.test_batches(_TEST_BATCH):
            labels = self.images.test_labels[indices].masked_fill_(indices < 0, IGNORE)
            yield normalize(self.images.test_images[indices], self.mean, self.std), labels
