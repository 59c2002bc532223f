"""Detection: average precision, what the trainer prunes and counts of Mask R-CNN, and its loss."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")

from rankprune import flops
from rankprune.lab.data import load_data
from rankprune.lab.data.generate import write_coco
from rankprune.lab.distributed.world import World
from rankprune.lab.models import WeightsError, create_model
from rankprune.lab.models.detection import DETECTIONS, PROPOSALS, count_macs
from rankprune.lab.recipes import load_recipe
from rankprune.lab.training.detection import as_results, average_precision, evaluate_detection
from rankprune.lab.training.smoke import smaller, stand_in
from rankprune.lab.training.task import build


class Oracle(nn.Module):
    """Says of each image what is true of it, in the order of the test set."""

    def __init__(self, data: Any, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.targets = [target for _, targets in data.test() for target in targets]
        self.shift, self.seen = shift, 0

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        found = []
        for _ in images:
            target, self.seen = self.targets[self.seen], self.seen + 1
            scores = torch.linspace(0.9, 0.8, len(target["labels"]))
            masks = target["masks"][:, None].float()
            found.append({"boxes": target["boxes"] + self.shift, "labels": target["labels"], "scores": scores, "masks": masks})
        return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_data("coco", write_coco(tmp_path_factory.mktemp("coco") / "set", test=6), batch_size=4)


def test_perfect_predictions_have_an_ap_of_one(data: Any) -> None:
    found = evaluate_detection(Oracle(data), data, World())
    assert set(found) == {"box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75"}
    assert all(value == pytest.approx(1.0) for value in found.values())


def test_boxes_and_masks_are_judged_apart_and_nothing_found_is_zero(data: Any) -> None:
    far = evaluate_detection(Oracle(data, shift=1000.0), data, World())
    assert far["box_ap"] == 0
    assert far["mask_ap"] == pytest.approx(1.0)
    assert set(average_precision(data.test_set.truth(), []).values()) == {0.0}


def test_ap_of_a_hand_case() -> None:
    """Two objects; found are one exactly, then a false one: precision is 1 up to recall 1/2, which is 51 of 101 points."""
    box = {"image_id": 1, "category_id": 1, "iscrowd": 0}
    polygon = [[0, 0, 10, 0, 10, 10, 0, 10]]
    truth = {
        "images": [{"id": 1, "file_name": "a", "height": 50, "width": 50}],
        "annotations": [
            {**box, "id": 1, "bbox": [0, 0, 10, 10], "area": 100, "segmentation": polygon},
            {**box, "id": 2, "bbox": [30, 30, 10, 10], "area": 100, "segmentation": [[30, 30, 40, 30, 40, 40, 30, 40]]},
        ],
        "categories": [{"id": 1, "name": "x"}],
    }
    mask = torch.zeros(2, 1, 50, 50)
    mask[0, 0, :10, :10] = 1
    mask[1, 0, 20:22, 20:22] = 1
    output = {"boxes": torch.tensor([[0.0, 0, 10, 10], [20, 20, 22, 22]]), "labels": torch.tensor([1, 1]), "scores": torch.tensor([0.9, 0.5]), "masks": mask}
    results = as_results(1, output)
    assert json.loads(json.dumps(results)) == results
    found = average_precision(truth, results)
    assert found == pytest.approx(dict.fromkeys(found, 51 / 101))


def test_ap_is_that_of_pycocotools(data: Any) -> None:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    random = np.random.default_rng(0)
    results = []
    for target in Oracle(data).targets:
        moved = target["boxes"] + torch.from_numpy(random.normal(0, 4, target["boxes"].shape)).float()
        masks = torch.roll(target["masks"], int(random.integers(0, 6)), -1)[:, None].float()
        scores = torch.from_numpy(random.random(len(moved)))
        results += as_results(int(target["image_id"]), {**target, "boxes": moved, "masks": masks, "scores": scores})
    found = average_precision(data.test_set.truth(), results)
    for kind, name, other in (("bbox", "box", "segmentation"), ("segm", "mask", "bbox")):
        truth = coco.COCO()
        truth.dataset = copy.deepcopy(data.test_set.truth())
        truth.createIndex()
        judge = cocoeval.COCOeval(truth, truth.loadRes([{k: v for k, v in one.items() if k != other} for one in results]), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        assert [found[f"{name}_{key}"] for key in ("ap", "ap50", "ap75")] == pytest.approx(judge.stats[:3].tolist())
        assert 0 < found[f"{name}_ap"] < 1


@pytest.fixture(scope="module")
def task() -> Any:
    recipe = smaller(load_recipe("coco-maskrcnn-rpg-80"))
    return build(recipe, stand_in(recipe))


def test_frozen_parts_are_neither_pruned_nor_counted_nor_trained(task: Any) -> None:
    layers = [layer for group in task.sparsifier.groups for layer in group.layers]
    names = {layer.name for layer in layers}
    frozen = {name for name, p in task.model.named_parameters() if not p.requires_grad}
    stem_and_stage = {name: p for name, p in task.model.named_parameters() if "body.conv1" in name or "body.layer1" in name}
    assert frozen == set(stem_and_stage)
    assert sum(p.numel() for p in stem_and_stage.values()) == 9_408 + 212_992
    assert not names & frozen
    weights = {name for name, p in task.model.named_parameters() if p.ndim > 1}
    assert names == weights - frozen
    trained = {id(p) for group in task.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in stem_and_stage.values()}


def test_the_loss_is_the_sum_of_the_detectors_own(task: Any) -> None:
    images, targets = next(task.data.train(0))
    task.model.train()
    torch.manual_seed(1)
    loss = task.loss(images, targets)
    torch.manual_seed(1)
    parts = task.model(images, targets)
    assert set(parts) == {"loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg"}
    assert loss.item() == pytest.approx(sum(part.item() for part in parts.values()), rel=1e-5)


def test_macs_are_of_a_nominal_pass(task: Any) -> None:
    report = count_macs(task.model, 3, 64)
    dense = {row.name: row.dense for row in report.rows}
    assert set(dense) == {name for name, p in task.model.named_parameters() if p.ndim > 1}
    assert dense["roi_heads.box_head.fc6.weight"] == PROPOSALS * 1024 * 256 * 49
    assert dense["roi_heads.mask_head.0.0.weight"] == DETECTIONS * 256 * 256 * 9 * 14 * 14
    assert dense["rpn.head.cls_logits.weight"] == 256 * 3 * (16**2 + 8**2 + 4**2 + 2**2 + 1)
    backbone = flops.count(task.model.backbone.body, torch.zeros(1, 3, 64, 64))
    assert sum(n for name, n in dense.items() if "backbone.body" in name) == backbone.dense
    assert report.sparse <= report.dense


def test_a_backbone_from_a_file(tmp_path: Path) -> None:
    body = create_model("torchvision:resnet50", 1000)
    torch.save(body.state_dict(), tmp_path / "resnet50.pth")
    model = create_model("maskrcnn-resnet50-fpn", 4, pretrained=str(tmp_path / "resnet50.pth"))
    assert torch.equal(model.backbone.body.layer4[2].conv3.weight, body.layer4[2].conv3.weight)  # type: ignore[union-attr, index]
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="holds no ResNet-50"):
        create_model("maskrcnn-resnet50-fpn", 4, pretrained=str(tmp_path / "other.pth"))
