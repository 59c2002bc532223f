"""Data sets whose samples are decoded one by one in worker processes, each with its own random numbers."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from .augment import seeded
from .base import Batch, DataModule
from .errors import DataError
from .sampling import Sampling, seed_of


class Key(NamedTuple):
    """Identifies a sample and its use in the run; the random numbers of the sample depend on nothing else."""

    sample: int  # its index; -1 marks padding
    place: tuple[int, ...] = ()  # (seed, epoch, batch, position in the step, 0); empty in testing


class Samples(Dataset):
    """One split. A sample that cannot be read is returned as a `DataError`, so that the main process can raise it."""

    @abstractmethod
    def read(self, index: int) -> Any:
        """Read a sample. Random transforms draw from the global generators.

        Args:
            index: Index of the sample.

        Returns:
            The sample.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the file of a sample, for messages.

        Args:
            index: Index of the sample.

        Returns:
            Its path.
        """

    @abstractmethod
    def filling(self, sample: Any) -> Any:
        """Mark a sample as padding, which does not count in the evaluation.

        Args:
            sample: The sample.

        Returns:
            The marked sample.
        """

    def __getitem__(self, key: Key) -> Any:
        index = max(key.sample, 0)
        try:
            # torchvision and timm draw from the global generators, so they are seeded per sample and then restored.
            with seeded(seed_of(*key.place)):
                sample = self.read(index)
        except Exception as error:
            # Pillow raises one of three built-in errors for a damaged file, and its own for one with too many pixels.
            kind = type(error).__name__
            if not isinstance(error, (OSError, SyntaxError, ValueError)) and kind != "DecompressionBombError":
                raise
            return DataError(f"{self.name(index)} is not a readable image ({kind}): replace or remove it.")
        return sample if key.sample >= 0 else self.filling(sample)


class _Steps:
    """The keys of each batch, created on demand because an epoch may have millions of samples."""

    def __init__(self, sampling: Sampling, epoch: int, start_batch: int) -> None:
        self.sampling, self.epoch = sampling, epoch
        self.batches = sampling.train_batches(epoch, start_batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        own = self.sampling.own
        for number, indices in self.batches:
            place = (self.sampling.seed, self.epoch, number)
            # Five numbers, because the training loop seeds dropout and mixup with keys of four.
            yield [Key(index, (*place, own.start + i, 0)) for i, index in enumerate(indices[own].tolist())]


class DecodedData(DataModule):
    """A data set of two splits of `Samples`, decoded by ``workers`` processes."""

    train_set: Samples
    test_set: Samples
    workers: int

    @staticmethod
    @abstractmethod
    def collate(samples: list[Any]) -> Batch:
        """Combine samples to a batch.

        Args:
            samples: The samples.

        Returns:
            The batch.
        """

    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """See `DataModule.train`.

        Args:
            epoch: Number of the epoch, from 0.
            start_batch: First batch to return.

        Returns:
            An iterator over the batches.
        """
        return self._batches(self.train_set, _Steps(self.sampling, epoch, start_batch))

    def test(self) -> Iterator[Batch]:
        """See `DataModule.test`.

        Returns:
            An iterator over the batches.
        """
        parts = self.sampling.test_batches(self.batch_size)
        return self._batches(self.test_set, [[Key(index) for index in part.tolist()] for part in parts])

    def _batches(self, dataset: Samples, batches: Any) -> Iterator[Batch]:
        loader: DataLoader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=partial(_collate, type(self).collate),
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            prefetch_factor=4 if self.workers else None,
            generator=torch.Generator(),  # otherwise the loader advances the global one, and a resumed run would differ
        )
        try:
            for batch in _start(loader):
                if isinstance(batch, DataError):
                    raise batch
                yield tuple(batch)  # type: ignore[misc]
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DataError(
                f"A data worker died ({str(error).partition('.')[0]}), often for lack of memory: "
                f"lower workers={self.workers} or the batch size."
            ) from error


def _collate(collate: Callable[[list[Any]], Batch], items: list[Any]) -> Batch | DataError:
    return next((item for item in items if isinstance(item, DataError)), None) or collate(items)


def _start(loader: DataLoader) -> Iterator[Any]:
    """Start the workers without torch's SIGCHLD handler, which raises at an arbitrary point when a worker dies.

    Raised in the middle of a training step, the error would leave the step half done. A loader without a timeout checks
    its workers after every five seconds of waiting, so a death is still noticed, but between two batches.
    """
    number = getattr(signal, "SIGCHLD", None)  # Windows has none
    before = signal.getsignal(number) if number else None
    iterator = iter(loader)
    if number and before is not None and signal.getsignal(number) is not before:
        signal.signal(number, before)
    return iterator
