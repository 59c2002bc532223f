"""Image folders with one subfolder per class, read by torchvision with the usual ImageNet transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankprune._util import need

from .augment import rand_augment, random_erasing
from .base import IGNORE, STATISTICS, Batch
from .decoding import DecodedData, Samples
from .errors import DataError
from .sampling import Sampling, evenly


class Folder(Samples):
    """One split of an image folder.

    Args:
        folder: Folder with one subfolder per class.
        transform: Maps a Pillow image to a tensor.
        limit: Use only this many images, evenly spaced; None uses all.

    Raises:
        DataError: `folder` is not an image folder.
    """

    def __init__(self, folder: Path, transform: Any, limit: int | None) -> None:
        datasets = need("torchvision.datasets", "vision", "An image folder")
        try:
            listing = datasets.ImageFolder(str(folder))
        except OSError as error:
            reason = str(error).partition(". ")[0].rstrip(".")
            raise DataError(f"{folder} is not an image folder ({reason}): give each class its subfolder.") from error
        self.classes: list[str] = listing.classes
        self.samples = [listing.samples[i] for i in evenly(len(listing.samples), limit).tolist()]
        self.load = listing.loader
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> tuple[Tensor, int]:
        """Read and transform an image.

        Args:
            index: Index of the sample.

        Returns:
            (image (3, H, W), label).
        """
        path, label = self.samples[index]
        return self.transform(self.load(path)), label

    def name(self, index: int) -> str:
        """Return the path of an image.

        Args:
            index: Index of the sample.

        Returns:
            Its path.
        """
        return self.samples[index][0]

    def filling(self, sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
        """Mark a sample as padding by the label `IGNORE`.

        Args:
            sample: (image, label).

        Returns:
            The marked sample.
        """
        return sample[0], IGNORE


class FolderData(DecodedData):
    """The image folders ``root/train`` and ``root/val`` (or ``root/test``).

    Args:
        root: The folder that holds both splits.
        image_size: Height and width of the images after cropping.
        sampling: Arguments of `Sampling`, except the sizes of the splits.
        statistics: Data set whose mean and std normalize the images.
        augment: Augment the training images.
        limits: Use only this many (training, test) images; None uses all.
        workers: Processes that decode images.
        policy: RandAugment policy of timm, or None.
        erase: Probability of random erasing.
        interpolation: Interpolation of resizing.

    Raises:
        DataError: A folder is missing, or the splits have different classes.
    """

    def __init__(
        self,
        root: Path,
        image_size: int,
        sampling: dict[str, Any],
        statistics: str = "imagenet",
        augment: bool = True,
        limits: tuple[int | None, int | None] = (None, None),
        workers: int = 0,
        policy: str | None = None,
        erase: float = 0.0,
        interpolation: str = "bilinear",
    ) -> None:
        if not root.is_dir():
            raise DataError(f"There is no data folder {root}: give the one that holds train/ and val/.")
        held_out = root / "val" if (root / "val").is_dir() else root / "test"
        for needed in (root / "train", held_out):
            if not needed.is_dir():
                raise DataError(f"{root} is incomplete: of train/ and val/ (or test/), {needed.name}/ is missing.")
        exact, varied = _transforms(image_size, statistics, policy, erase, interpolation)
        train = Folder(root / "train", varied if augment else exact, limits[0])
        test = Folder(held_out, exact, limits[1])
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))
            raise DataError(f"train/ and {held_out.name}/ of {root} differ in their classes: {odd[0]} is in one only.")
        self.train_set, self.test_set, self.workers = train, test, workers
        drawn = Sampling(len(train), len(test), **sampling)
        super().__init__("imagefolder", len(train.classes), 3, image_size, drawn)

    @staticmethod
    def collate(samples: list[tuple[Tensor, int]]) -> Batch:
        """Stack samples to a batch.

        Args:
            samples: (image, label) of each sample.

        Returns:
            (images (N, 3, H, W), labels (N,)).
        """
        images, labels = zip(*samples)
        return torch.stack(images), torch.tensor(labels)


def _transforms(size: int, statistics: str, policy: str | None, erase: float, interpolation: str) -> tuple[Any, Any]:
    """Return the transforms for testing and training.

    Testing resizes and takes the center crop in the usual proportion 224 : 256. Training takes a random resized crop
    and flip, with optional RandAugment before the conversion to a tensor and random erasing after it.
    """
    T = need("torchvision.transforms", "vision", "An image folder")
    if size < 1:
        raise DataError(f"image_size={size} must be at least 1.")
    if (channels := len(STATISTICS[statistics][0])) != 3:
        raise DataError(f"normalize={statistics!r} is for images of {channels} channels and an imagefolder has 3.")
    how = T.InterpolationMode(interpolation)
    end = [T.ToTensor(), T.Normalize(*STATISTICS[statistics])]
    exact = T.Compose([T.Resize(round(size / 0.875), how), T.CenterCrop(size), *end])
    varied = [T.RandomResizedCrop(size, interpolation=how), T.RandomHorizontalFlip()]
    if policy is not None:
        varied.append(rand_augment(policy, size, STATISTICS[statistics][0]))
    return exact, T.Compose([*varied, *end, *([random_erasing(erase)] if erase else [])])
