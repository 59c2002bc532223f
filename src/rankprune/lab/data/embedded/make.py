"""Create the embedded subset of Fashion-MNIST:  python make.py FOLDER

FOLDER holds the four official ``*-ubyte.gz`` files (Debian's package ``dataset-fashion-mnist`` installs them in
``/usr/share/datasets/fashion-mnist``). The subset is the first 1,200 training and the first 200 test images of each
class, in the official order. The file is the xz of the bytes of: training images, training labels, test images, test
labels. Prints the SHA-256 that ``rankprune/lab/data/fashion.py`` checks.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of uint8: two zero bytes, type 8, number of dimensions, sizes (big-endian uint32), data.

    Args:
        path: The gzipped file.

    Returns:
        The array it holds.
    """
    raw = gzip.decompress(path.read_bytes())
    assert raw[:3] == b"\0\0\x08", f"{path.name} is no IDX file of bytes."
    dims = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)


def first_of_each_class(folder: Path, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Select the first images of each class, in the official order.

    Args:
        folder: Folder of the official files.
        split: "train" or "t10k".
        count: Images per class.

    Returns:
        (images, labels).
    """
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))
    return images[chosen], labels[chosen]


def main(folder: Path) -> None:
    """Write ``fashion-mnist.xz`` beside this file.

    Args:
        folder: Folder of the official files.
    """
    parts = [*first_of_each_class(folder, "train", 1200), *first_of_each_class(folder, "t10k", 200)]
    packed = lzma.compress(b"".join(part.tobytes() for part in parts), preset=9 | lzma.PRESET_EXTREME)
    (Path(__file__).parent / "fashion-mnist.xz").write_bytes(packed)
    print(len(packed), "bytes", hashlib.sha256(packed).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
