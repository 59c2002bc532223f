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
    moved = [{key: value.to(device) for key, value in target.items()} for target in targets]
    return [image.to(device) for image in images], moved


@torch.no_grad()
def evaluate_detection(model: nn.Module, data: CocoData, world: World) -> dict[str, float]:
    """AP of the test images, each process looking at its part of them."""
    world.share_buffers(model)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    found: list[dict[str, Any]] = []
    for images, targets in data.test():
        outputs = model([image.to(device) for image in images])
        for output, target in zip(outputs, targets):
            if (image_id := int(target["image_id"])) != FILLING:
                found += as_results(image_id, output)
    model.train(training)
    parts = world.all_gather(json.dumps(found).encode())
    return average_precision(data.test_set.truth(), [one for part in parts for one in json.loads(part)])  # type: ignore[attr-defined]


def as_results(image_id: int, output: dict[str, Tensor]) -> list[dict[str, Any]]:
    """What a detector of torchvision says of one image, as COCO's results: boxes (x, y, w, h) and coded masks."""
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
    """AP (over IoU 0.5 to 0.95), AP50 and AP75 as shares: box_ap, mask_ap, box_ap50 and so on."""
    library = need("faster_coco_eval", "detection", "COCO")
    results = list(results)
    found: dict[str, float] = {}
    for kind, name in _NAMES.items():
        left_out = "segmentation" if kind == "bbox" else "bbox"  # what stands there decides how areas are taken
        real = library.COCO(truth)
        guessed = real.loadRes([{key: value for key, value in one.items() if key != left_out} for one in results])
        judge = library.COCOeval_faster(real, guessed, kind, print_function=lambda *_: None)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        found |= {f"{name}_{key}": max(float(judge.stats[i]), 0.0) for i, key in enumerate(("ap", "ap50", "ap75"))}
    return found
