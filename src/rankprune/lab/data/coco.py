"""Images with boxes and masks in COCO's layout: ROOT/annotations/instances_SPLIT2017.json, ROOT/SPLIT2017/*.jpg."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rankprune._util import need

from .base import Batch
from .decoding import DecodedData, Samples
from .errors import DataError
from .sampling import Sampling, evenly

Target = dict[str, Tensor]

# The images differ in size; MACs are counted at this one.
NOMINAL_SIZE = 800
FILLING = -1  # image id of padding, which does not count in the evaluation


class Instances(Samples):
    """One split. An image is floats in [0, 1]; its target holds image_id, boxes (x1, y1, x2, y2), labels and masks.

    Labels are the category ids as in the file (1 to 90 in COCO); 0 is the background. Training leaves out images
    without an object, and within an image crowds and boxes without area.

    Args:
        root: Folder that holds ``annotations/`` and the folders of images.
        split: "train2017" or "val2017".
        train: The split is for training.
        mirror: Flip half of the images horizontally.
        limit: Use only this many images, evenly spaced; None uses all.

    Raises:
        DataError: The annotations or images are missing or cannot be used.
    """

    def __init__(self, root: Path, split: str, train: bool, mirror: bool, limit: int | None) -> None:
        need("faster_coco_eval", "detection", "COCO")
        path = root / "annotations" / f"instances_{split}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.categories = [int(category["id"]) for category in content["categories"]]
            objects: dict[int, list[dict[str, Any]]] = {int(image["id"]): [] for image in content["images"]}
            for image in content["images"]:
                _ = image["file_name"], image["height"], image["width"]
            for annotation in content["annotations"]:
                _ = annotation["category_id"], annotation["segmentation"]
                if not train or (not annotation.get("iscrowd", 0) and min(annotation["bbox"][2:]) > 0):
                    objects[int(annotation["image_id"])].append(annotation)
        except FileNotFoundError:
            raise DataError(f"{path} is missing: give the folder that holds annotations/ and {split}/.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no COCO instances ({type(error).__name__}: {error}).") from None
        images = [image for image in content["images"] if objects[int(image["id"])] or not train]
        if not images:
            raise DataError(f"{path} holds no image with an object: nothing can be learned from it.")
        self.images = [images[i] for i in evenly(len(images), limit).tolist()]
        self.objects = objects
        self.content = {} if train else content
        self.folder, self.mirror = root / split, mirror
        if not self.folder.is_dir():
            raise DataError(f"{root} is incomplete: the images of {path.name} belong into {self.folder.name}/.")

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """Return the path of an image.

        Args:
            index: Index of the sample.

        Returns:
            Its path.
        """
        return str(self.folder / self.images[index]["file_name"])

    def filling(self, sample: tuple[Tensor, Target]) -> tuple[Tensor, Target]:
        """Mark a sample as padding by the image id -1.

        Args:
            sample: (image, target).

        Returns:
            The marked sample.
        """
        return sample[0], {**sample[1], "image_id": torch.tensor(FILLING)}

    def read(self, index: int) -> tuple[Tensor, Target]:
        """Read an image and its target.

        Args:
            index: Index of the sample.

        Returns:
            (image (3, H, W), target).
        """
        PIL = need("PIL.Image", "detection", "COCO")
        record = self.images[index]
        with PIL.open(self.name(index)) as file:
            pixels = np.asarray(file.convert("RGB"))
        if pixels.shape[:2] != (record["height"], record["width"]):
            raise ValueError("its size is not that of its annotation")
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)
        annotations = self.objects[int(record["id"])]
        boxes = torch.tensor([annotation["bbox"] for annotation in annotations], dtype=torch.float32).view(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        target = {
            "image_id": torch.tensor(int(record["id"])),
            "boxes": boxes,
            "labels": torch.tensor([int(annotation["category_id"]) for annotation in annotations], dtype=torch.int64),
            "masks": masks([each["segmentation"] for each in annotations], record["height"], record["width"]),
        }
        return mirrored(image, target) if self.mirror and torch.rand(()) < 0.5 else (image, target)

    def truth(self) -> dict[str, Any]:
        """Return the annotations of the images of this split, for the evaluation."""
        ids = {int(image["id"]) for image in self.images}
        return {
            "images": self.images,
            "annotations": [each for each in self.content["annotations"] if int(each["image_id"]) in ids],
            "categories": self.content["categories"],
            "info": {},
        }


def masks(segmentations: Sequence[Any], height: int, width: int) -> Tensor:
    """Decode segmentations: polygons or run lengths, compressed or not.

    Args:
        segmentations: One per object, as in COCO's annotations.
        height: Height of the image.
        width: Width of the image.

    Returns:
        Masks of 0 and 1, (N, height, width).
    """
    coding = need("faster_coco_eval.core.mask", "detection", "COCO")
    planes = torch.zeros(len(segmentations), height, width, dtype=torch.uint8)
    for i, segmentation in enumerate(segmentations):
        coded = segmentation
        if isinstance(segmentation, list):
            coded = coding.merge(coding.frPyObjects(segmentation, height, width))
        elif isinstance(segmentation["counts"], list):
            coded = coding.frPyObjects(segmentation, height, width)
        planes[i] = torch.from_numpy(np.ascontiguousarray(coding.decode(coded)))
    return planes


def mirrored(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Flip an image and its boxes and masks horizontally.

    Args:
        image: (3, H, W).
        target: Its target.

    Returns:
        The flipped image and target.
    """
    width, boxes = image.shape[-1], target["boxes"].clone()
    boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    return image.flip(-1), {**target, "boxes": boxes, "masks": target["masks"].flip(-1)}


class CocoData(DecodedData):
    """COCO with ``train2017`` for training and ``val2017`` for testing. A batch is a list of images and one of targets.

    Args:
        root: Folder that holds ``annotations/``, ``train2017/`` and ``val2017/``.
        sampling: Arguments of `Sampling`, except the sizes of the splits.
        augment: Flip half of the training images.
        limits: Use only this many (training, test) images; None uses all.
        workers: Processes that decode images.

    Raises:
        DataError: The annotations or images are missing, or the splits have different categories.
    """

    metric: ClassVar[str] = "box_ap"

    def __init__(
        self,
        root: Path,
        sampling: dict[str, Any],
        augment: bool = True,
        limits: tuple[int | None, int | None] = (None, None),
        workers: int = 0,
    ) -> None:
        if not root.is_dir():
            raise DataError(f"There is no data folder {root}: give the one that holds annotations/ and train2017/.")
        train = Instances(root, "train2017", train=True, mirror=augment, limit=limits[0])
        test = Instances(root, "val2017", train=False, mirror=False, limit=limits[1])
        if train.categories != test.categories:
            raise DataError(f"The categories of train2017 and val2017 of {root} differ: they must be the same.")
        self.train_set, self.test_set, self.workers = train, test, workers
        drawn = Sampling(len(train), len(test), **sampling)
        # torchvision's detectors count classes up to the largest id, including the background.
        super().__init__("coco", max(train.categories) + 1, 3, NOMINAL_SIZE, drawn)

    @staticmethod
    def collate(samples: list[tuple[Tensor, Target]]) -> Batch:
        """Collect samples to a batch of two lists, because the images differ in size.

        Args:
            samples: (image, target) of each sample.

        Returns:
            (images, targets).
        """
        images, targets = zip(*samples)
        return list(images), list(targets)
