"""Opening a data set by its name."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from .base import STATISTICS, DataModule
from .cifar10 import WAY_OUT, download_cifar10, read_cifar10
from .coco import CocoData
from .errors import DataError
from .fashion import read_fashion
from .imagefolder import FolderData
from .memory import MemoryData
from .sampling import Sampling

_NAMES = ("cifar10", "coco", "fashion", "imagefolder")


def list_data() -> list[str]:
    """Return the names that `load_data` accepts."""
    return list(_NAMES)


def load_data(
    name: str,
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    augment: bool = True,
    rand_augment: str | None = None,
    erase: float = 0.0,
    interpolation: str = "bilinear",
    repeats: int = 1,
    steps_per_epoch: int | None = None,
    normalize: str | None = None,
    limit_train: int | None = None,
    limit_test: int | None = None,
    holdout: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    download: bool = False,
) -> DataModule:
    """Open a data set by name.

    Args:
        name: "fashion" (embedded), "cifar10", "imagefolder" or "coco".
        root: Folder of the data set; needed for all but fashion.
        image_size: 28 or 14 for fashion, 32 or 16 for cifar10, any (default 224) for imagefolder; not for coco.
        batch_size: Samples per step on one rank.
        seed: Seed of the order of samples and of augmentation.
        augment: Augment the training images (random crop and flip).
        rand_augment: A RandAugment policy of timm, such as "rand-m9-mstd0.5-inc1"; imagefolder only.
        erase: Probability of random erasing; imagefolder only.
        interpolation: Interpolation of resizing; imagefolder only.
        repeats: Repeated augmentation, see `Sampling`.
        steps_per_epoch: Length of an epoch in steps, see `Sampling`.
        normalize: Normalize with the mean and std of another data set ("cifar10", "fashion" or "imagenet"), for weights
            that were trained with them.
        limit_train: Use only this many training images, evenly spaced over the set.
        limit_test: Use only this many test images, evenly spaced over the set.
        holdout: Test on this many training images of cifar10 or fashion instead of the test set, and do not train on
            them; for choosing hyper-parameters.
        rank: Index of this process.
        world_size: Number of processes.
        workers: Processes that decode the images of imagefolder or coco.
        download: Download cifar10 if it is missing; call it on one rank first.

    Returns:
        The opened data set.

    Raises:
        DataError: The name is unknown, an argument does not apply to the data set, or its files cannot be read.
    """
    if name not in _NAMES:
        nearest = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.0)[0]
        raise DataError(f"There is no data set named {name!r}: the nearest is {nearest!r}, of {', '.join(_NAMES)}.")
    if normalize is not None and normalize not in STATISTICS:
        raise DataError(f"normalize={normalize!r} is unknown: it is one of {', '.join(STATISTICS)}.")
    for key, value in (("rand_augment", rand_augment), ("erase", erase), ("interpolation", interpolation)):
        if name != "imagefolder" and value and value != "bilinear":
            raise DataError(f"{key}={value} is for an imagefolder, and the data set is {name}: leave it out.")
    if holdout is not None and name not in ("cifar10", "fashion"):
        raise DataError(f"holdout={holdout} is for cifar10 and fashion, and the data set is {name}: leave it out.")
    for key, given in (("image_size", image_size), ("normalize", normalize)):
        if name == "coco" and given is not None:
            raise DataError(f"{key}={given} is not for coco, whose detectors resize and normalize: leave it out.")
    sampling: dict[str, Any] = {
        "batch_size": batch_size, "seed": seed, "rank": rank, "world_size": world_size,
        "repeats": repeats, "steps": steps_per_epoch,
    }  # fmt: skip
    limits = limit_train, limit_test
    if name == "fashion":
        images = read_fashion()
    elif root is None:
        way_out = WAY_OUT if name == "cifar10" else "give it as root (--data DIR)."
        raise DataError(f"The data set {name} is read from a folder: {way_out}")
    elif name == "imagefolder":
        return FolderData(
            Path(root),
            224 if image_size is None else image_size,
            sampling,
            normalize or "imagenet",
            augment,
            limits,
            workers,
            rand_augment,
            erase,
            interpolation,
        )
    elif name == "coco":
        return CocoData(Path(root), sampling, augment, limits, workers)
    else:
        if download:
            download_cifar10(Path(root))
        images = read_cifar10(Path(root))
    if holdout is not None:
        images = images.held_out(holdout)
    images = images.limited(*limits).at_size(image_size, name)
    drawn = Sampling(len(images.train_labels), len(images.test_labels), **sampling)
    return MemoryData(name, images, 10, drawn, normalize or name, augment)
