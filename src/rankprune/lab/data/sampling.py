"""Which samples form which batch: a pure function of (seed, epoch, batch, rank), so each batch can be made alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import DataError


def seed_of(*key: int) -> int:
    """Hash a tuple of integers to a seed.

    Args:
        *key: Non-negative integers.

    Returns:
        A well-mixed 63-bit seed.
    """
    # The length is part of the key because SeedSequence treats (1, 2) and (1, 2, 0) as equal.
    return int(np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*key: int) -> torch.Generator:
    """Create a generator that is seeded by a tuple of integers.

    Args:
        *key: Non-negative integers.

    Returns:
        The CPU generator.
    """
    return torch.Generator().manual_seed(seed_of(*key))


def evenly(size: int, limit: int | None) -> Tensor:
    """Return evenly spaced indices, so that a folder sorted by class still gives every class.

    Args:
        size: Number of samples.
        limit: Number of indices; None returns all.

    Returns:
        The indices, ascending.

    Raises:
        DataError: `limit` is below 1.
    """
    if limit is None or limit >= size:
        return torch.arange(size)
    if limit < 1:
        raise DataError(f"A limit of {limit} images leaves nothing to train or test on: give 1 or more.")
    return torch.arange(limit) * size // limit


@dataclass(frozen=True)
class Sampling:
    """Batches over `world_size` ranks.

    The ranks' batches of a step together are the batch that a single process with ``world_size * batch_size`` would
    have drawn. Training drops the samples that do not fill the last step. Testing keeps every sample; where the ranks'
    shares differ in size, the smaller ones are padded with the index -1.

    Args:
        train_size: Training samples, over all ranks.
        test_size: Test samples, over all ranks.
        batch_size: Samples per step on one rank.
        seed: Seed of the order.
        rank: Index of this process.
        world_size: Number of processes.
        repeats: Each image is drawn this many times in a row, and a pass still has as many samples as the training
            set: repeated augmentation (Hoffer et al. 2020), as timm implements it.
        steps: Length of an epoch in batches; by default an epoch is one pass over the training set.

    Raises:
        DataError: A value is out of range, or there are too few images.
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
        # With fewer images than a batch (as in a smoke run), an epoch is one batch of all of them.
        object.__setattr__(self, "batch_size", min(self.batch_size, self.train_size // self.world_size))

    @property
    def step_size(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def batches_per_epoch(self) -> int:
        """Steps in one epoch."""
        return self._batches_per_pass if self.steps is None else self.steps

    @property
    def _batches_per_pass(self) -> int:
        return self.train_size // self.step_size

    @property
    def own(self) -> slice:
        """This rank's part of a step."""
        return slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)

    def train_batches(self, epoch: int, start_batch: int = 0) -> list[tuple[int, Tensor]]:
        """Return the steps of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            start_batch: First step to return.

        Returns:
            (number of the step, sample indices of all ranks (step_size,)) for each step.

        Raises:
            DataError: There is no such epoch or step.
        """
        if epoch < 0 or not 0 <= start_batch <= self.batches_per_epoch:
            raise DataError(
                f"Epoch {epoch} from batch {start_batch} was asked for, of epochs 0, 1, ... "
                f"with {self.batches_per_epoch} batches each."
            )
        batches: list[tuple[int, Tensor]] = []
        number, loaded, steps = start_batch, -1, torch.empty(0)
        for batch in range(epoch * self.batches_per_epoch + start_batch, (epoch + 1) * self.batches_per_epoch):
            whole, part = divmod(batch, self._batches_per_pass)
            if whole != loaded:
                loaded, steps = whole, self._pass(whole)
            batches.append((number, steps[part]))
            number += 1
        return batches

    def _pass(self, number: int) -> Tensor:
        """The steps of one pass over the training set, (steps, step_size)."""
        order = torch.randperm(self.train_size, generator=generator(self.seed, number))
        if self.repeats > 1:
            order = order.repeat_interleave(self.repeats)
        return order[: self._batches_per_pass * self.step_size].view(-1, self.step_size)

    def test_batches(self, batch_size: int) -> list[Tensor]:
        """Return this rank's test indices in batches, equally many on every rank.

        Args:
            batch_size: Largest size of a batch.

        Returns:
            The batches of indices; -1 marks padding.
        """
        share = -(-self.test_size // self.world_size)
        mine = torch.arange(share) * self.world_size + self.rank
        mine[mine >= self.test_size] = -1
        return list(mine.split(batch_size))
