"""Folders of images, one subfolder a class, by torchvision, with the usual ImageNet transforms."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankprune.data.augment import rand_augment, random_erasing, seeded
from rankprune.data.base import IGNORE, STATISTICS, Batch, DataModule
from rankprune.data.errors import DataError
from rankprune.data.sampling import Sampling, evenly, seed_of
from rankprune.models.extra import need

Key = tuple[int, int]  # (seed of the sample's own randomness, index; -1 is filling)


class Folder(Dataset):
    """One split; a sample that cannot be read is returned as its error, to reach the caller as one sentence."""

    def __init__(self, folder: Path, transform: Any, limit: int | None) -> None:
        datasets = need("torchvision.datasets", "vision", "An image folder")
        try:
            found = datasets.ImageFolder(str(folder))
        except OSError as error:
            reason = str(error).partition(". ")[0].rstrip(".")
            raise DataError(f"{folder} is no image folder ({reason}): give each class its subfolder.") from error
        self.classes: list[str] = found.classes
        self.samples = [found.samples[i] for i in evenly(len(found.samples), limit).tolist()]
        self.load = found.loader
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: Key) -> tuple[Tensor, int] | DataError:
        seed, index = key
        path, label = self.samples[max(index, 0)]
        try:
            # torchvision and timm draw from the global generators: give each sample its own, and leave no trace.
            with seeded(seed):
                image: Tensor = self.transform(self.load(path))
        except (OSError, SyntaxError, ValueError) as error:  # Pillow's three ways to refuse a damaged file
            return DataError(f"{path} is not a readable image ({type(error).__name__}): replace or remove it.")
        return image, (label if index >= 0 else IGNORE)


def _collate(items: list[tuple[Tensor, int] | DataError]) -> Batch | DataError:
    for item in items:
        if isinstance(item, DataError):
            return item
    images, labels = zip(*items)  # type: ignore[arg-type]
    return torch.stack(images), torch.tensor(labels)


class FolderData(DataModule):
    """``root/train`` and ``root/val`` (or ``root/test``); ``workers`` processes decode."""

    def __init__(
        self,
        root: Path,
        image_size: int = 224,
        batch_size: int = 128,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        statistics: str = "imagenet",
        augment: bool = True,
        limits: tuple[int | None, int | None] = (None, None),
        workers: int = 0,
        policy: str | None = None,
        erase: float = 0.0,
    ) -> None:
        if not root.is_dir():
            raise DataError(f"There is no data folder {root}: give the one that holds train/ and val/.")
        held_out = root / "val" if (root / "val").is_dir() else root / "test"
        for needed in (root / "train", held_out):
            if not needed.is_dir():
                raise DataError(f"{root} is incomplete: of train/ and val/ (or test/), {needed.name}/ is missing.")
        exact, varied = _transforms(image_size, statistics, policy, erase)
        self.train_set = Folder(root / "train", varied if augment else exact, limits[0])
        self.test_set = Folder(held_out, exact, limits[1])
        classes = self.train_set.classes
        if classes != self.test_set.classes:
            odd = sorted(set(classes) ^ set(self.test_set.classes))
            raise DataError(f"train/ and {held_out.name}/ of {root} differ in their classes: {odd[0]} is in one only.")
        self.workers = workers
        sampling = Sampling(len(self.train_set), len(self.test_set), batch_size, seed, rank, world_size)
        super().__init__("imagefolder", len(classes), 3, image_size, sampling)

    def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        seed = self.sampling.seed
        batches = [
            [(seed_of(seed, epoch, index), index) for index in indices[self.sampling.own].tolist()]
            for _, indices in self.sampling.train_batches(epoch, start_batch)
        ]
        return self._batches(self.train_set, batches)

    def test(self) -> Iterator[Batch]:
        keys = [[(0, index) for index in part.tolist()] for part in self.sampling.test_batches(self.batch_size)]
        return self._batches(self.test_set, keys)

    def _batches(self, dataset: Folder, batches: list[list[Key]]) -> Iterator[Batch]:
        loader = DataLoader(
            dataset,
            batch_sampler=batches,  # type: ignore[arg-type]
            collate_fn=_collate,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
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


def _transforms(size: int, statistics: str, policy: str | None, erase: float) -> tuple[Any, Any]:
    """(for testing, for training): centre crop, in the usual proportion 224 : 256; random resized crop and mirror,
    and where asked for RandAugment before and erasing after."""
    T = need("torchvision.transforms", "vision", "An image folder")
    if size < 1:
        raise DataError(f"image_size={size} must be at least 1.")
    end = [T.ToTensor(), T.Normalize(*STATISTICS[statistics])]
    exact = T.Compose([T.Resize(round(size / 0.875)), T.CenterCrop(size), *end])
    varied = [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]
    if policy is not None:
        varied.append(rand_augment(policy, size, STATISTICS[statistics][0]))
    return exact, T.Compose([*varied, *end, *([random_erasing(erase)] if erase else [])])
