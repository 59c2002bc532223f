from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rankprune.lab.data import DataError
from rankprune.lab.data.augment import (
    Crops,
    crop_and_mirror,
    draw_crops,
    halve,
    mixer,
    normalize,
    rand_augment,
    reseed,
    seeded,
)


def test_crop_and_mirror_by_hand() -> None:
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 1, 2, 2)
    padded = [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]
    for top in range(3):
        for left in range(3):
            for mirror in (False, True):
                crops = Crops(torch.tensor([top]), torch.tensor([left]), torch.tensor([mirror]))
                rows = [row[left : left + 2] for row in padded[top : top + 2]]
                expected = [row[::-1] for row in rows] if mirror else rows
                assert crop_and_mirror(image, crops, 1)[0, 0].tolist() == expected


def test_batch_agrees_with_torchvision_image_by_image() -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    images = torch.randint(256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    crops = draw_crops(40, 2, torch.Generator().manual_seed(1))
    out = crop_and_mirror(images, crops, 2)
    for i in range(40):
        one = functional.crop(functional.pad(images[i], [2]), int(crops.top[i]), int(crops.left[i]), 16, 16)
        assert torch.equal(out[i], functional.hflip(one) if crops.mirror[i] else one)


def test_draws_cover_every_corner_evenly() -> None:
    crops = draw_crops(9000, 1, torch.Generator().manual_seed(0))
    counts = torch.bincount(3 * crops.top + crops.left, minlength=9)
    assert (counts - 1000).abs().max() < 150  # five standard deviations of a binomial
    assert (crops.mirror.sum() - 4500).abs() < 240


def test_a_part_of_the_crops_does_its_part_of_the_images() -> None:
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    crops = draw_crops(6, 1, torch.Generator().manual_seed(2))
    whole = crop_and_mirror(images, crops, 1)
    assert torch.equal(crop_and_mirror(images[2:4], crops.part(slice(2, 4)), 1), whole[2:4])


def test_halve_is_the_rounded_area_mean() -> None:
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(halve(images).float(), (F.avg_pool2d(images.float(), 2) + 0.5).floor())
    assert halve(torch.tensor([[255, 254], [0, 1]], dtype=torch.uint8).view(1, 1, 2, 2)).item() == 128  # 127.5


def test_normalize_agrees_with_torchvision() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    before = images.clone()
    expected = transforms.Normalize(mean, std)(images.float() / 255)
    torch.testing.assert_close(normalize(images, torch.tensor(mean), torch.tensor(std)), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(images, before)


def test_seeded_starts_all_three_generators_and_leaves_no_trace() -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    reseed(1)
    outside = draw()
    reseed(1)
    with seeded(5):
        inside = draw()
    assert draw() == outside
    reseed(5)
    assert draw() == inside


def test_mixed_labels_are_the_shares_of_the_two_images() -> None:
    pytest.importorskip("timm")
    images = torch.arange(8.0).view(8, 1, 1, 1).repeat(1, 1, 4, 4)
    labels = torch.arange(8)
    reseed(3)
    mixed, soft = mixer(1.0, 0.0, 1.0, 0.0, 0.0, 8)(images.clone(), labels)
    assert torch.allclose(soft.sum(1), torch.ones(8))
    assert torch.allclose(mixed[:, 0, 0, 0], soft @ torch.arange(8.0), atol=1e-5)
    assert not torch.equal(mixed, images)
    reseed(3)
    again, _ = mixer(1.0, 0.0, 1.0, 0.0, 0.0, 8)(images.clone(), labels)
    assert torch.equal(again, mixed)
    reseed(3)
    cut, soft = mixer(0.0, 1.0, 1.0, 0.0, 0.0, 8)(images.clone(), labels)
    assert set(cut[0].unique().tolist()) <= {0.0, 7.0}
    assert cut[0].mean() / 7 == pytest.approx(float(soft[0, 7]))


def test_a_policy_that_is_none_is_one_sentence() -> None:
    pytest.importorskip("timm")
    for policy in ("augmix", "rand-q9"):
        with pytest.raises(DataError, match="rand_augment"):
            rand_augment(policy, 32, (0.5, 0.5, 0.5))
