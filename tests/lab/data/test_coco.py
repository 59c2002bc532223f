"""COCO's layout: what is read, what is left out, and that batches can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")

from rankprune.lab.data import DataError, load_data
from rankprune.lab.data.coco import masks, mirrored
from rankprune.lab.data.generate import run_lengths, write_coco


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two images: one with a box, a crowd and a flat box; one with nothing. All by hand."""
    (tmp_path / "annotations").mkdir()
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[1:4, 2:5] = 255
    shape = {"image_id": 5, "category_id": 4, "iscrowd": 0}
    content = {
        "images": [{"id": 5, "file_name": "a.png", "height": 6, "width": 8}, {"id": 9, "file_name": "b.png", "height": 6, "width": 8}],
        "annotations": [
            {**shape, "id": 1, "bbox": [2, 1, 3, 3], "area": 9, "segmentation": [[2, 1, 5, 1, 5, 4, 2, 4]]},
            {**shape, "id": 2, "bbox": [0, 0, 8, 6], "area": 48, "iscrowd": 1, "segmentation": {"counts": [0, 48], "size": [6, 8]}},
            {**shape, "id": 3, "bbox": [2, 1, 0, 3], "area": 0, "segmentation": [[2, 1, 2, 4, 2, 1]]},
        ],
        "categories": [{"id": 2, "name": "x"}, {"id": 4, "name": "y"}],
    }  # fmt: skip
    for split in ("train2017", "val2017"):
        (tmp_path / split).mkdir()
        for name in ("a.png", "b.png"):
            Image.fromarray(pixels).save(tmp_path / split / name)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return tmp_path


def test_what_is_read(tiny: Path) -> None:
    data = load_data("coco", tiny, batch_size=4, augment=False)
    assert (data.num_classes, data.train_size, data.test_size, data.metric) == (5, 1, 2, "box_ap")
    ((images, targets),) = list(data.train(0))
    assert images[0].shape == (3, 6, 8)
    assert images[0][:, 1:4, 2:5].eq(1).all()
    assert images[0].sum() == 27
    assert targets[0]["boxes"].tolist() == [[2.0, 1.0, 5.0, 4.0]]  # neither the crowd nor the flat box
    assert targets[0]["labels"].tolist() == [4]
    assert torch.equal(targets[0]["masks"][0].bool(), images[0][0] > 0)
    tested = [target for _, part in data.test() for target in part]
    assert [int(target["image_id"]) for target in tested] == [5, 9]
    assert [len(target["labels"]) for target in tested] == [3, 0]


def test_mirroring_moves_boxes_and_masks_with_the_pixels(tiny: Path) -> None:
    ((images, targets),) = list(load_data("coco", tiny, augment=False).train(0))
    image, target = mirrored(images[0], targets[0])
    assert target["boxes"].tolist() == [[3.0, 1.0, 6.0, 4.0]]
    assert torch.equal(target["masks"][0].bool(), image[0] > 0)
    again = mirrored(image, target)
    assert torch.equal(again[0], images[0])
    assert torch.equal(again[1]["boxes"], targets[0]["boxes"])


def test_masks_of_polygons_and_run_lengths_agree() -> None:
    shape = np.zeros((7, 9), bool)
    shape[2:5, 3:8] = True
    polygon, runs = [[3, 2, 8, 2, 8, 5, 3, 5]], {"counts": run_lengths(shape), "size": [7, 9]}
    found = masks([polygon, runs], 7, 9)
    assert torch.equal(found[0], found[1])
    assert np.array_equal(found[1].numpy().astype(bool), shape)
    assert run_lengths(np.ones((2, 2), bool)) == [0, 4]
    assert masks([], 7, 9).shape == (0, 7, 9)


def test_generated_pictures_can_be_read_and_batches_made_again(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "one")
    data = load_data("coco", root, batch_size=2, steps_per_epoch=5)
    assert (data.num_classes, data.train_size, data.test_size, data.batches_per_epoch) == (4, 8, 4, 5)
    whole, rest = list(data.train(1)), list(load_data("coco", root, batch_size=2, steps_per_epoch=5, workers=1).train(1, 3))
    for (images, targets), (others, same) in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(images, others))
        assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(targets, same))
    for _, targets in whole:
        for target in targets:
            for box, mask in zip(target["boxes"], target["masks"]):
                rows, columns = torch.where(mask > 0)
                assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box.tolist()
    again = write_coco(tmp_path / "two")
    assert (again / "annotations/instances_val2017.json").read_text() == (root / "annotations/instances_val2017.json").read_text()


def test_what_is_wrong_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data folder"):
        load_data("coco", tmp_path / "nowhere")
    Image.new("RGB", (3, 3)).save(tiny / "val2017" / "a.png")
    with pytest.raises(DataError, match=r"val2017/a\.png is not a readable image"):
        list(load_data("coco", tiny).test())
    path = tiny / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    for part, field in (("images", "height"), ("images", "file_name"), ("annotations", "segmentation")):
        short = {**content, part: [{k: v for k, v in one.items() if k != field} for one in content[part]]}
        path.write_text(json.dumps(short))
        with pytest.raises(DataError, match=f"holds no COCO instances .KeyError: '{field}'"):
            load_data("coco", tiny)
    path.write_text(json.dumps({"images": []}))
    with pytest.raises(DataError, match="holds no COCO instances"):
        load_data("coco", tiny)
    path.unlink()
    with pytest.raises(DataError, match=r"instances_val2017\.json is missing"):
        load_data("coco", tiny)


def test_tiny_coco(real_data: Path) -> None:
    data = load_data("coco", real_data / "tiny_coco" / "tiny_coco", batch_size=2)
    assert (data.num_classes, data.test_size) == (91, 50)
    images, targets = next(data.train(0))
    for image, target in zip(images, targets):
        assert image.shape[0] == 3
        assert target["masks"].shape == (len(target["labels"]), *image.shape[1:])
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
