"""Detection: the loss of torchvision's detectors, and average precision over boxes and masks as COCO defines it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankprune._util import need
from rankprune.lab.data.coco import FILLING, CocoData
from rankprune.lab.distributed.world import World

_NAMES = {"bbox": "box", "segm": "mask"}


def to_device(images: list[Tensor], targets: list[dict[str, Tensor]], device: torch.device) -> tuple[Any, Any]:
    """Move a detection batch to a device.

    Args:
        images: Images of different sizes.
        targets: Their targets.
        device: The device.

    Returns:
        (images, targets) on the device.
    """
    moved = [{key: value.to(device) for key, value in target.items()} for target in targets]
    return [image.to(device) for image in images], moved


@torch.no_grad()
def evaluate_detection(model: nn.Module, data: CocoData, world: World) -> dict[str, float]:
    """Measure the average precision on the test images, each process with its share of them.

    Args:
        model: A detector of torchvision.
        data: The data set.
        world: The processes of the run.

    Returns:
        What `average_precision` returns.
    """
    world.share_buffers(model)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    detections: list[dict[str, Any]] = []
    for images, targets in data.test():
        outputs = model([image.to(device) for image in images])
        for output, target in zip(outputs, targets):
            if (image_id := int(target["image_id"])) != FILLING:
                detections += as_results(image_id, output)
    model.train(training)
    parts = world.all_gather(json.dumps(detections).encode())
    return average_precision(data.test_set.truth(), [detection for part in parts for detection in json.loads(part)])  # type: ignore[attr-defined]


def as_results(image_id: int, output: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Convert a detector's output for one image to COCO's result format.

    Args:
        image_id: The image.
        output: Boxes, labels, scores and masks, as torchvision returns them.

    Returns:
        One entry per object, with its box (x, y, w, h) and encoded mask.
    """
    coding = need("faster_coco_eval.core.mask", "detection", "COCO")
    boxes = output["boxes"].double().cpu()
    boxes[:, 2:] -= boxes[:, :2]
    masks = (output["masks"][:, 0] > 0.5).to(torch.uint8).cpu().numpy()
    results = []
    for box, label, score, mask in zip(boxes.tolist(), output["labels"].tolist(), output["scores"].tolist(), masks):
        code = coding.encode(np.asfortranarray(mask))
        counts = code["counts"].decode() if isinstance(code["counts"], bytes) else code["counts"]
        segmentation = {"size": [int(side) for side in code["size"]], "counts": counts}
        results.append(
            {"image_id": image_id, "category_id": label, "score": score, "bbox": box, "segmentation": segmentation}
        )
    return results


def average_precision(truth: dict[str, Any], results: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Compute AP (over IoU 0.5 to 0.95), AP50 and AP75 of boxes and masks.

    Args:
        truth: Annotations in COCO's format.
        results: Detections in COCO's format.

    Returns:
        Fractions: box_ap, box_ap50, box_ap75, mask_ap, ...
    """
    library = need("faster_coco_eval", "detection", "COCO")
    results = list(results)
    scores: dict[str, float] = {}
    for kind, name in _NAMES.items():
        left_out = "segmentation" if kind == "bbox" else "bbox"  # the library computes areas from whichever is present
        real = library.COCO(truth)
        guessed = real.loadRes([{key: value for key, value in result.items() if key != left_out} for result in results])
        judge = library.COCOeval_faster(real, guessed, kind, print_function=lambda *_: None)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        scores |= {f"{name}_{key}": max(float(judge.stats[i]), 0.0) for i, key in enumerate(("ap", "ap50", "ap75"))}
    return scores
