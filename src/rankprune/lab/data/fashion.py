"""The embedded subset of Fashion-MNIST (Xiao et al. 2017): 12,000 + 2,000 gray images of 28x28 pixels."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import read_verified
from .memory import Images

FILE = Path(__file__).parent / "embedded" / "fashion-mnist.xz"
DIGEST = "sha256:1b2ba3d6b68dd37b001ffaf8723e0051dd1399f20e28caef3ab331c087ec5997"
TRAIN, TEST, SIZE = 12_000, 2_000, 28


def read_fashion(file: Path = FILE, digest: str = DIGEST) -> Images:
    """Read the embedded subset. `embedded/make.py` defines the file's layout and which images were chosen.

    Args:
        file: The compressed file.
        digest: Its expected checksum.

    Returns:
        The images and labels of both splits.

    Raises:
        DataError: The file is missing or damaged.
    """
    raw = np.frombuffer(bytearray(lzma.decompress(read_verified(file, digest))), np.uint8)
    cuts = np.cumsum([TRAIN * SIZE * SIZE, TRAIN, TEST * SIZE * SIZE])
    train_images, train_labels, test_images, test_labels = np.split(raw, cuts)

    def images(part: np.ndarray) -> Tensor:
        return torch.from_numpy(part).view(-1, 1, SIZE, SIZE)

    return Images(
        images(train_images),
        torch.from_numpy(train_labels).long(),
        images(test_images),
        torch.from_numpy(test_labels).long(),
    )
