"""The one interface between a data set and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from .sampling import Sampling

# Images and labels, two tensors; or of a detection set two lists, of images of their own sizes and of their targets.
Batch = tuple[Any, Any]

# Label of the samples that fill up a rank's share of the test set; cross entropy passes it over by default.
IGNORE = -100

# (mean, std) per channel of images scaled to [0, 1].
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "fashion": ((0.2860,), (0.3530,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class DataModule(ABC):
    """Normalised float images and integer labels, in batches that (seed, epoch, batch) determines."""

    metric: ClassVar[str] = "top1"  # by which the best epoch is chosen

    def __init__(self, name: str, num_classes: int, in_channels: int, image_size: int, sampling: Sampling) -> None:
        self.name = name
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.image_size = image_size
        self.sampling = sampling

    @property
    def batches_per_epoch(self) -> int:
        return self.sampling.batches_per_epoch

    @property
    def batch_size(self) -> int:
        """Samples of one rank's batch; smaller than asked for where the data are fewer."""
        return self.sampling.batch_size

    @property
    def train_size(self) -> int:
        return self.sampling.train_size

    @property
    def test_size(self) -> int:
        return self.sampling.test_size

    @abstractmethod
    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """This rank's batches of ``epoch``, from ``start_batch`` on exactly as if those before had been read."""

    @abstractmethod
    def test(self) -> Iterator[Batch]:
        """This rank's share of the test set; count only the samples whose label is not ``IGNORE``."""
