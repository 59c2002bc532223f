"""Samples that are decoded one by one, in worker processes, each with random numbers of its own."""

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
    """Which sample, and where in the run it is used: its random numbers depend on nothing else."""

    sample: int  # its index; -1 is filling
    place: tuple[int, ...] = ()  # (seed, epoch, batch, position in the step, 0); empty in testing


class Samples(Dataset):
    """One split; a sample that cannot be read is returned as its error, to reach the caller as one sentence."""

    @abstractmethod
    def read(self, index: int) -> Any:
        """The sample; whatever is random in it is drawn from the global generators."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Its file."""

    @abstractmethod
    def filling(self, sample: Any) -> Any:
        """The sample, marked as one that does not count."""

    def __getitem__(self, key: Key) -> Any:
        index = max(key.sample, 0)
        try:
            # torchvision and timm draw from the global generators: give each sample its own, and leave no trace.
            with seeded(seed_of(*key.place)):
                sample = self.read(index)
        except Exception as error:
            # Pillow refuses a damaged file in three ways, and in a fourth, of its own, one that claims too many pixels.
            kind = type(error).__name__
            if not isinstance(error, (OSError, SyntaxError, ValueError)) and kind != "DecompressionBombError":
                raise
            return DataError(f"{self.name(index)} is not a readable image ({kind}): replace or remove it.")
        return sample if key.sample >= 0 else self.filling(sample)


class _Steps:
    """The keys of each batch, made when they are asked for: an epoch may have millions."""

    def __init__(self, sampling: Sampling, epoch: int, start_batch: int) -> None:
        self.sampling, self.epoch = sampling, epoch
        self.batches = sampling.train_batches(epoch, start_batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        own = self.sampling.own
        for number, indices in self.batches:
            place = (self.sampling.seed, self.epoch, number)
            # Five numbers: of four the training loop makes the seeds of dropout and mixup.
            yield [Key(index, (*place, own.start + i, 0)) for i, index in enumerate(indices[own].tolist())]


class DecodedData(DataModule):
    """Two splits of `Samples`; ``workers`` processes decode."""

    train_set: Samples
    test_set: Samples
    workers: int

    @staticmethod
    @abstractmethod
    def collate(samples: list[Any]) -> Batch:
        """A batch of samples."""

    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        return self._batches(self.train_set, _Steps(self.sampling, epoch, start_batch))

    def test(self) -> Iterator[Batch]:
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
            generator=torch.Generator(),  # else the loader draws its seed from the global one, and resume would differ
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
    """Start the workers, without torch's handler that raises wherever the caller is when one dies.

    In the midst of a training step that would leave it half done. A loader without a timeout looks after its
    workers every five seconds that it waits for them, so the death is still noticed, between two batches.
    """
    number = getattr(signal, "SIGCHLD", None)  # Windows has none
    before = signal.getsignal(number) if number else None
    iterator = iter(loader)
    if number and before is not None and signal.getsignal(number) is not before:
        signal.signal(number, before)
    return iterator
