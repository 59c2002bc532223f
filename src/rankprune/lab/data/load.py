"""``load_data``: a data set by name, behind the one interface."""

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
    """Open ``"fashion"`` (embedded), ``"cifar10"``, ``"imagefolder"`` or ``"coco"`` (these in the folder ``root``).

    ``image_size``: 28 or 14 for fashion, 32 or 16 for cifar10, any (224) for imagefolder, none for coco.
    ``batch_size`` counts one rank's samples. ``normalize`` takes another data set's mean and std ("cifar10",
    "fashion", "imagenet"), as weights trained with them need. ``rand_augment`` (a policy of timm's), ``erase`` (a
    chance) and ``interpolation`` are of an imagefolder. The limits keep so many images, spread over the set.
    ``holdout`` tests on so many images of cifar10's or fashion's training set instead of the test set, and does not
    train on them: for choosing settings. ``repeats`` and ``steps_per_epoch`` are explained at `Sampling`. ``workers``
    decode an imagefolder or coco; ``download`` fetches a missing cifar10 (call it on one rank first).
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
            raise DataError(f"{key}={given} is not for coco, whose detectors resize and normalise: leave it out.")
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
