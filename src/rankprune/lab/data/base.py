"""The one interface between a data set and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from .sampling import Sampling

# (images, labels) as two tensors; for detection, a list of images of different sizes and a list of their targets.
Batch = tuple[Any, Any]

# Label of the padding samples in a rank's share of the test set. It is the default `ignore_index` of cross entropy.
IGNORE = -100

# (mean, std) per channel of images scaled to [0, 1].
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "fashion": ((0.2860,), (0.3530,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class DataModule(ABC):
    """Normalized float images and integer labels, in batches that depend only on (seed, epoch, batch).

    Args:
        name: Name of the data set, as in recipes.
        num_classes: Number of classes.
        in_channels: Channels of an image.
        image_size: Height and width of an image.
        sampling: Decides which samples form which batch.
    """

    metric: ClassVar[str] = "top1"  # selects the best epoch

    def __init__(self, name: str, num_classes: int, in_channels: int, image_size: int, sampling: Sampling) -> None:
        self.name = name
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.image_size = image_size
        self.sampling = sampling

    @property
    def batches_per_epoch(self) -> int:
        """Optimizer steps in one epoch."""
        return self.sampling.batches_per_epoch

    @property
    def batch_size(self) -> int:
        """Samples in one rank's batch; smaller than requested if the data set is smaller than a batch."""
        return self.sampling.batch_size

    @property
    def train_size(self) -> int:
        """Number of training samples, over all ranks."""
        return self.sampling.train_size

    @property
    def test_size(self) -> int:
        """Number of test samples, over all ranks."""
        return self.sampling.test_size

    @abstractmethod
    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Iterate over this rank's training batches of one epoch.

        Args:
            epoch: Number of the epoch, from 0.
            start_batch: First batch to return. The batches are the same as if the earlier ones had been read.

        Returns:
            An iterator over the batches.
        """

    @abstractmethod
    def test(self) -> Iterator[Batch]:
        """Iterate over this rank's share of the test set.

        Returns:
            An iterator over batches; only samples whose label is not `IGNORE` count.
        """
