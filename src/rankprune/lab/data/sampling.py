"""Which samples make which batch: a pure function of (seed, epoch, batch, rank), so any batch can be made alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import DataError


def seed_of(*key: int) -> int:
    """One well-mixed 63-bit seed of a tuple of non-negative integers."""
    # The length goes in too, for SeedSequence takes (1, 2) and (1, 2, 0) for the same.
    return int(np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*key))


def evenly(size: int, limit: int | None) -> Tensor:
    """``limit`` indices spread over ``range(size)``, so that a sorted folder still gives every class."""
    if limit is None or limit >= size:
        return torch.arange(size)
    if limit < 1:
        raise DataError(f"A limit of {limit} images leaves nothing to train or test on: give 1 or more.")
    return torch.arange(limit) * size // limit


@dataclass(frozen=True)
class Sampling:
    """Batches over ``world_size`` ranks; ``batch_size`` counts the samples of one rank.

    The ranks' batches of one step together are the batch that a single process with ``world_size * batch_size``
    would have drawn. Training drops the samples left over from the last full step; testing keeps every sample, and
    where the ranks' shares differ the shorter ones are filled up with the index -1.

    With ``repeats`` each image comes so many times in a row and a pass ends after as many samples as ever: repeated
    augmentation (Hoffer et al. 2020), as timm samples it. ``steps`` cuts the stream of passes into epochs of so many
    batches instead of one pass each.
    """

    train_size: int
    test_size: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    repeats: int = 1
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.repeats < 1 or (self.steps is not None and self.steps < 1):
            raise DataError(f"repeats={self.repeats} and steps_per_epoch={self.steps} must be at least 1.")
        if self.batch_size < 1 or self.seed < 0 or not 0 <= self.rank < self.world_size:
            raise DataError(
                f"batch_size={self.batch_size} must be at least 1, seed={self.seed} at least 0 "
                f"and rank={self.rank} within world_size={self.world_size}."
            )
        if self.train_size < self.world_size or self.test_size < 1:
            raise DataError(
                f"{self.train_size} training and {self.test_size} test images are too few "
                f"for {self.world_size} process(es): raise the limit."
            )
        # A run on fewer images than a batch (a smoke run) takes them all as its one batch.
        object.__setattr__(self, "batch_size", min(self.batch_size, self.train_size // self.world_size))

    @property
    def step_size(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def batches_per_epoch(self) -> int:
        return self._batches_per_pass if self.steps is None else self.steps

    @property
    def _batches_per_pass(self) -> int:
        return self.train_size // self.step_size

    @property
    def own(self) -> slice:
        """This rank's part of a step."""
        return slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)

    def train_batches(self, epoch: int, start_batch: int = 0) -> list[tuple[int, Tensor]]:
        """(number, the indices of all ranks) for each step of the epoch from ``start_batch`` on."""
        if epoch < 0 or not 0 <= start_batch <= self.batches_per_epoch:
            raise DataError(
                f"Epoch {epoch} from batch {start_batch} was asked for, of epochs 0, 1, ... "
                f"with {self.batches_per_epoch} batches each."
            )
        found: list[tuple[int, Tensor]] = []
        number, held, steps = start_batch, -1, torch.empty(0)
        for batch in range(epoch * self.batches_per_epoch + start_batch, (epoch + 1) * self.batches_per_epoch):
            whole, part = divmod(batch, self._batches_per_pass)
            if whole != held:
                held, steps = whole, self._pass(whole)
            found.append((number, steps[part]))
            number += 1
        return found

    def _pass(self, number: int) -> Tensor:
        """The steps of one pass through the images, (steps, samples of a step)."""
        order = torch.randperm(self.train_size, generator=generator(self.seed, number))
        if self.repeats > 1:
            order = order.repeat_interleave(self.repeats)
        return order[: self._batches_per_pass * self.step_size].view(-1, self.step_size)

    def test_batches(self, batch_size: int) -> list[Tensor]:
        """This rank's test indices, as many on every rank, -1 where there is no sample."""
        share = -(-self.test_size // self.world_size)
        mine = torch.arange(share) * self.world_size + self.rank
        mine[mine >= self.test_size] = -1
        return list(mine.split(batch_size))
