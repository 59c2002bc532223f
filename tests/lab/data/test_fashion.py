from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from rankprune.lab.data import IGNORE, DataError, load_data
from rankprune.lab.data.fashion import FILE, read_fashion


def test_the_slice_is_balanced_and_small() -> None:
    images = read_fashion()
    assert images.train_images.shape == (12_000, 1, 28, 28)
    assert images.test_images.shape == (2_000, 1, 28, 28)
    assert images.train_labels.bincount().tolist() == [1200] * 10
    assert images.test_labels.bincount().tolist() == [200] * 10
    assert FILE.stat().st_size <= 6_000_000
    assert (FILE.parent / "LICENSE.fashion-mnist").read_text().count("Zalando SE") == 1


def test_labels_belong_to_their_images() -> None:
    """The nearest of ten class means names most test images: chance would be a tenth."""
    images = read_fashion()
    train, test = images.train_images.flatten(1).float(), images.test_images.flatten(1).float()
    means = torch.stack([train[images.train_labels == c].mean(0) for c in range(10)])
    assert (torch.cdist(test, means).argmin(1) == images.test_labels).float().mean() > 0.6


def test_it_is_the_beginning_of_the_official_files() -> None:
    """The first ten labels of Fashion-MNIST, as its layer prints them."""
    images = read_fashion()
    assert images.train_labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert images.test_labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    raw = bytearray(FILE.read_bytes())
    raw[1000] ^= 1
    (tmp_path / "f.xz").write_bytes(raw)
    with pytest.raises(DataError, match=r"f.xz is corrupt \(\d+ bytes whose sha256 begins \w{8} and not 1b2ba3d6\)"):
        read_fashion(tmp_path / "f.xz")
    with pytest.raises(DataError, match=r"f.xz is corrupt"):
        read_fashion(tmp_path / "f.xz", "sha256:" + hashlib.sha256(b"other").hexdigest())
    with pytest.raises(DataError, match=r"absent.xz is missing"):
        read_fashion(tmp_path / "absent.xz")


def test_batches() -> None:
    data = load_data("fashion", batch_size=100, seed=1)
    assert (data.num_classes, data.in_channels, data.image_size, data.batches_per_epoch) == (10, 1, 28, 120)
    x, y = next(data.train(0))
    assert x.shape == (100, 1, 28, 28)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    test = list(data.test())
    pixels = torch.cat([x for x, _ in test])
    assert len(pixels) == 2000
    assert abs(pixels.mean()) < 0.05
    assert abs(pixels.std() - 1) < 0.05


def test_any_batch_can_be_made_alone() -> None:
    data = load_data("fashion", batch_size=1000, seed=1)
    whole = list(data.train(3))
    again = load_data("fashion", batch_size=1000, seed=1)
    torch.rand(5)  # global randomness has no part in it
    for start in (0, 5, 11):
        x, y = next(again.train(3, start))
        assert torch.equal(x, whole[start][0])
        assert torch.equal(y, whole[start][1])
    other = next(load_data("fashion", batch_size=1000, seed=2).train(3))
    assert not torch.equal(other[0], whole[0][0])
    assert not torch.equal(next(data.train(4))[1], whole[0][1])


def test_ranks_see_what_one_process_would() -> None:
    x, y = next(load_data("fashion", batch_size=64).train(0))
    halves = [next(load_data("fashion", batch_size=32, rank=r, world_size=2).train(0)) for r in (0, 1)]
    assert torch.equal(x, torch.cat([h[0] for h in halves]))
    assert torch.equal(y, torch.cat([h[1] for h in halves]))


def test_uneven_test_shares_are_filled_with_ignored_labels() -> None:
    ranks = [list(load_data("fashion", limit_test=7, rank=r, world_size=3).test()) for r in range(3)]
    labels = torch.cat([y for one in ranks for _, y in one])
    assert len(labels) == 9
    assert (labels == IGNORE).sum() == 2
    single = torch.cat([y for _, y in load_data("fashion", limit_test=7).test()])
    assert sorted(labels[labels != IGNORE].tolist()) == sorted(single.tolist())


def test_half_size_without_augmentation_and_limits() -> None:
    data = load_data("fashion", image_size=14, augment=False, limit_train=100, limit_test=30, batch_size=100)
    x, _ = next(data.train(0))
    assert x.shape == (100, 1, 14, 14)
    assert (data.train_size, data.test_size, data.batches_per_epoch) == (100, 30, 1)
    images = read_fashion().train_images[::120].float()
    expected = (images.unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5)) + 0.5).floor() / 255
    first = (x * 0.3530 + 0.2860).flatten(1).sort(dim=0).values
    torch.testing.assert_close(first, expected.flatten(1).sort(dim=0).values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 32}, "fashion comes at 28 or 14 pixels, not 32"),
        ({"normalize": "imagenet"}, "normalize='imagenet' is for images of 3 channels and fashion has 1"),
        ({"normalize": "imagenette"}, "normalize='imagenette' is unknown"),
        ({"limit_train": 0}, "limit of 0"),
        ({"interpolation": "bicubic"}, "interpolation=bicubic is for an imagefolder, and the data set is fashion"),
        ({"erase": 0.1}, "erase=0.1 is for an imagefolder"),
    ],
)
def test_bad_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data("fashion", **change)  # type: ignore[arg-type]


def test_unknown_names_and_missing_roots() -> None:
    with pytest.raises(DataError, match="named 'cifar': the nearest is 'cifar10', of cifar10, coco, fashion, imagefolder"):
        load_data("cifar")
    for name in ("cifar10", "imagefolder"):
        with pytest.raises(DataError, match=f"data set {name} is read from a folder"):
            load_data(name)
