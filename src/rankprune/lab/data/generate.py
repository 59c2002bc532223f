"""Generated images in the layouts of real data sets, for tests and trials of the readers without the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rankprune._util import need

_SIDES = (96, 128)  # pixels of the shorter and the longer side


def write_image_folder(root: Path, classes: int = 10, train: int = 4, test: int = 2, seed: int = 0) -> Path:
    """Write an image folder of JPEG files in which each class has its own colour.

    Args:
        root: Folder to write into.
        classes: Number of classes.
        train: Training images per class.
        test: Test images per class.
        seed: Seed of the noise in the images.

    Returns:
        `root`.
    """
    random = np.random.default_rng(seed)
    for split, count in (("train", train), ("val", test)):
        for label in range(classes):
            folder = root / split / f"class{label:03d}"
            folder.mkdir(parents=True)
            for i in range(count):
                _save(folder / f"{i}.jpg", _texture(random, label / classes))
    return root


def write_coco(root: Path, train: int = 8, test: int = 4, seed: int = 0) -> Path:
    """Write images of filled boxes and triangles on noise, with annotations in COCO's format.

    A box is category 1 with a polygon as its mask; a triangle is category 3 with run lengths. The category ids have a
    gap, as in COCO.

    Args:
        root: Folder to write into; it must not exist yet.
        train: Number of training images.
        test: Number of test images.
        seed: Seed of the shapes and the noise.

    Returns:
        `root`.
    """
    random = np.random.default_rng(seed)
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train2017", train), ("val2017", test)):
        (root / split).mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for i in range(count):
            pixels = _texture(random, 0.5)
            height, width = pixels.shape[:2]
            for _ in range(2):
                category = (1, 3)[int(random.integers(2))]
                size = int(random.integers(height // 4, height // 2))
                left, top = int(random.integers(width - size)), int(random.integers(height - size))
                shape = np.zeros((height, width), bool)
                if category == 1:
                    shape[top : top + size, left : left + size] = True
                    right, bottom = left + size, top + size
                    outline: Any = [[left, top, right, top, right, bottom, left, bottom]]
                else:
                    shape[top : top + size, left : left + size] = np.tri(size, dtype=bool)
                    outline = {"counts": run_lengths(shape), "size": [height, width]}
                pixels[shape] = (230, 40, 40) if category == 1 else (40, 40, 230)
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": 10 * i + 7,
                        "category_id": category,
                        "bbox": [left, top, size, size],
                        "area": int(shape.sum()),
                        "iscrowd": 0,
                        "segmentation": outline,
                    }
                )
            name = f"{i:012d}.jpg"
            images.append({"id": 10 * i + 7, "file_name": name, "height": height, "width": width})
            _save(root / split / name, pixels)
        content = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 1, "name": "box"}, {"id": 3, "name": "triangle"}],
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return root


def run_lengths(mask: np.ndarray) -> list[int]:
    """Encode a mask as COCO's uncompressed run lengths.

    Args:
        mask: Booleans, (height, width).

    Returns:
        Lengths of alternating runs of 0 and 1 in column order; the first run is of zeros and may be empty.
    """
    flat = mask.T.reshape(-1).astype(np.int8)
    ends = np.flatnonzero(np.diff(flat)) + 1
    edges = np.concatenate([[0], ends, [flat.size]])
    lengths = np.diff(edges).tolist()
    return [0, *lengths] if flat[0] else lengths


def _texture(random: np.random.Generator, hue: float) -> np.ndarray:
    height, width = _SIDES if random.random() < 0.5 else _SIDES[::-1]
    wave = np.cos(2 * np.pi * (hue + np.arange(3) / 3))
    noise = random.normal(0, 30, (height, width, 1))
    return np.clip(128 + 60 * wave + noise, 0, 255).astype(np.uint8)


def _save(path: Path, pixels: np.ndarray) -> None:
    need("PIL.Image", "vision", "A generated picture").fromarray(pixels).save(path, quality=90)
