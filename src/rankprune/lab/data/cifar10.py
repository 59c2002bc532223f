"""CIFAR-10 (Krizhevsky 2009) from its official files, binary or pickled, verified by the official checksums."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from rankprune._util import need

from .array_pickle import loads_arrays
from .errors import DataError, read_verified
from .memory import Images

PIXELS = 3 * 32 * 32
BINARY = {
    "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c",
}
PICKLED = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}


class Layout(NamedTuple):
    """The folder's name in the official archive, and its files in reading order with their digests, test file last."""

    folder: str
    digests: Mapping[str, str]


WAY_OUT = (
    "--data DIR names the folder with cifar-10-batches-py/data_batch_1 ... test_batch or "
    "cifar-10-batches-bin/data_batch_1.bin ... test_batch.bin, and data.download=true fetches them into it."
)
LAYOUTS = (Layout("cifar-10-batches-bin", BINARY), Layout("cifar-10-batches-py", PICKLED))


def read_cifar10(root: Path, layouts: tuple[Layout, ...] = LAYOUTS) -> Images:
    """Read CIFAR-10 from either of its official layouts.

    Args:
        root: The folder of the files, or its parent.
        layouts: The layouts to look for, in this order.

    Returns:
        The images and labels of both splits.

    Raises:
        DataError: The files are missing, incomplete or damaged.
    """
    folder, layout = _find(root, layouts)
    parts = [_decode(folder / name, read_verified(folder / name, digest)) for name, digest in layout.digests.items()]
    images = [torch.from_numpy(pixels).view(-1, 3, 32, 32) for pixels, _ in parts]
    labels = [torch.from_numpy(labels.astype(np.int64)) for _, labels in parts]
    return Images(torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1])


def download_cifar10(root: Path) -> None:
    """Download the pickled layout with torchvision, unless `root` already holds a complete copy.

    Args:
        root: Folder to download into.

    Raises:
        DataError: The download failed.
    """
    try:
        _find(root, LAYOUTS)
        return
    except DataError:
        datasets = need("torchvision.datasets", "vision", "Downloading CIFAR-10")
    try:
        datasets.CIFAR10(str(root), download=True)
    except (OSError, RuntimeError) as error:
        reason = str(getattr(error, "reason", error)).partition("\n")[0]
        raise DataError(
            f"CIFAR-10 could not be downloaded into {root} ({reason}): "
            "give the folder of a copy fetched elsewhere from https://www.cs.toronto.edu/~kriz/cifar.html."
        ) from error


def _find(root: Path, layouts: tuple[Layout, ...]) -> tuple[Path, Layout]:
    """The first complete layout; an incomplete one is an error that names what is missing."""
    if not root.is_dir():
        raise DataError(f"There is no data folder {root}: {WAY_OUT}")
    lacking = ""
    for layout in layouts:
        for folder in (root, root / layout.folder):
            missing = [name for name in layout.digests if not (folder / name).is_file()]
            if not missing:
                return folder, layout
            if len(missing) < len(layout.digests):
                lacking = lacking or f"{folder} is incomplete: {', '.join(missing)} missing, so unpack it again."
    raise DataError(
        lacking or f"{root} holds no CIFAR-10, neither {' nor '.join(one.folder for one in layouts)}: {WAY_OUT}"
    )


def _decode(path: Path, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(pixels (N, 3072), labels (N,)) of one file of either layout."""
    try:
        if path.suffix == ".bin":
            rows = np.frombuffer(bytearray(raw), np.uint8).reshape(-1, 1 + PIXELS)
            labels, pixels = rows[:, 0], np.ascontiguousarray(rows[:, 1:])
        else:
            batch = loads_arrays(raw)
            labels, pixels = np.asarray(batch[b"labels"]), batch[b"data"]
        right = pixels.dtype == np.uint8 and pixels.shape == (len(labels), PIXELS)
        if not right or len(labels) == 0 or labels.min() < 0 or labels.max() > 9:
            raise ValueError(f"its pixels are {pixels.dtype} {pixels.shape} for {len(labels)} labels")
    except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DataError(f"{path} is not a file of CIFAR-10 ({error}): fetch it again.") from error
    return pixels, labels
