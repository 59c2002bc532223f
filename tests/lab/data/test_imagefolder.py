from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from rankprune.lab.data import IGNORE, DataError, load_data
from rankprune.lab.data.decoding import _Steps
from rankprune.lab.data.sampling import seed_of

pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

# The header of a bitmap that claims 60,000 x 60,000 pixels, as a flipped bit may.
HUGE = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54, 0, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, 12 + 5 images each, 40x30; the first class is red, the second blue."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 5)):
        for channel, name in ((0, "red"), (2, "blue")):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 60, (30, 40, 3), np.uint8)
                pixels[..., channel] += 180
                Image.fromarray(pixels).save(root / split / name / f"{i:02}.png")
    return root


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def same(a: list[tuple[torch.Tensor, torch.Tensor]], b: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True))


def test_shapes_and_labels(folder: Path) -> None:
    data = load_data("imagefolder", folder, image_size=24, batch_size=5)
    assert (data.num_classes, data.in_channels, data.image_size) == (2, 3, 24)
    assert (data.train_size, data.test_size, data.batches_per_epoch) == (24, 10, 4)
    for x, y in [*data.train(0), *data.test()]:
        assert x.shape[1:] == (3, 24, 24)
        bluer = x[:, 2].mean((1, 2)) > x[:, 0].mean((1, 2))
        assert torch.equal(y, (~bluer).long())  # blue is class 0, red class 1
    assert torch.cat([y for _, y in data.test()]).bincount().tolist() == [5, 5]


def test_test_images_are_the_centre_crop(folder: Path) -> None:
    data = load_data("imagefolder", folder, image_size=14, batch_size=1)
    x, _ = next(data.test())
    image = Image.open(folder / "val" / "blue" / "00.png").resize((21, 16), Image.BILINEAR)
    pixels = np.asarray(image)[1:15, 4:18]  # torchvision's centre: round((16 - 14) / 2), round((21 - 14) / 2)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = torch.from_numpy((pixels / 255 - mean) / std).permute(2, 0, 1).float()
    torch.testing.assert_close(x[0], expected)


def test_batches_depend_on_seed_and_epoch_alone(folder: Path) -> None:
    def open_it(**kwargs: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        epoch, start = kwargs.pop("epoch", 1), kwargs.pop("start", 0)
        return list(load_data("imagefolder", folder, image_size=8, batch_size=4, **kwargs).train(epoch, start))  # type: ignore[arg-type]

    whole = open_it(seed=3)
    torch.manual_seed(99)
    assert same(open_it(seed=3), whole)
    assert same(open_it(seed=3, workers=2), whole)
    assert same(open_it(seed=3, start=4), whole[4:])
    assert not same(open_it(seed=4), whole)
    assert not same(open_it(seed=3, epoch=2), whole)


def test_no_sample_draws_what_the_network_draws(folder: Path) -> None:
    """The loop seeds dropout and mixup by (seed, epoch, batch, 1 + rank): no image may be varied by the same numbers."""
    data = load_data("imagefolder", folder, image_size=8, batch_size=4, seed=3)
    seeds = [seed_of(*key.place) for keys in _Steps(data.sampling, 1, 0) for key in keys]
    of_the_loop = {seed_of(3, 1, batch, 1 + rank) for batch in range(6) for rank in range(4)}
    assert len(set(seeds)) == len(seeds) == 24
    assert not of_the_loop & set(seeds)


@pytest.mark.parametrize("workers", [0, 1])
def test_global_randomness_is_left_alone(folder: Path, workers: int) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    data = load_data("imagefolder", folder, image_size=8, batch_size=4, workers=workers)
    assert len(list(data.train(0))) == 6
    assert torch.equal(torch.rand(3), expected)


def test_augmentation_varies_over_epochs_and_can_be_left_out(folder: Path) -> None:
    varied = load_data("imagefolder", folder, image_size=8, batch_size=24)
    plain = load_data("imagefolder", folder, image_size=8, batch_size=24, augment=False)

    def sums(data: object, epoch: int) -> list[float]:
        return sorted(next(data.train(epoch))[0].sum((1, 2, 3)).tolist())  # type: ignore[attr-defined]

    assert sums(varied, 0) != sums(varied, 1)
    assert sums(plain, 0) == sums(plain, 1)


def test_ranks_share_the_images(folder: Path) -> None:
    ranks = [load_data("imagefolder", folder, image_size=8, batch_size=2, rank=r, world_size=3) for r in range(3)]
    assert {r.batches_per_epoch for r in ranks} == {4}
    single = next(load_data("imagefolder", folder, image_size=8, batch_size=6).train(0))[0]
    assert torch.equal(torch.cat([next(r.train(0))[0] for r in ranks]), single)
    labels = torch.cat([y for r in ranks for _, y in r.test()])
    assert len(labels) == 12
    assert labels[labels != IGNORE].bincount().tolist() == [5, 5]


def test_limits_keep_every_class(folder: Path) -> None:
    data = load_data("imagefolder", folder, image_size=8, limit_train=4, limit_test=2)
    assert next(data.train(0))[1].bincount().tolist() == [2, 2]
    assert next(data.test())[1].tolist() == [0, 1]


def test_a_worker_that_dies_is_an_error(folder: Path) -> None:
    data = load_data("imagefolder", folder, image_size=8, batch_size=1, workers=2)
    batches = data.train(0)
    next(batches)
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid, signal.SIGKILL)  # type: ignore[arg-type]
    victim.join()  # the caller's own work goes on undisturbed
    with pytest.raises(DataError, match=r"A data worker died .* lower workers=2") as caught:
        list(batches)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"no image", HUGE, None])
def test_unreadable_image_is_named(copied: Path, workers: int, content: bytes | None) -> None:
    path = copied / "val" / "red" / "03.png"
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    data = load_data("imagefolder", copied, image_size=8, workers=workers)
    with pytest.raises(DataError, match=r"^\S*red/03\.png is not a readable image \(\w+\): replace or remove it\.$"):
        list(data.test())


def test_incomplete_folders(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no data folder .*nowhere"):
        load_data("imagefolder", tmp_path / "nowhere")
    (copied / "val").rename(copied / "test")
    assert load_data("imagefolder", copied).test_size == 10
    shutil.rmtree(copied / "test" / "blue")
    with pytest.raises(DataError, match=r"train/ and test/ of .* differ in their classes: blue is in one only"):
        load_data("imagefolder", copied)
    (copied / "test" / "blue").mkdir()
    with pytest.raises(DataError, match=r"test is not an image folder .*blue"):
        load_data("imagefolder", copied)
    shutil.rmtree(copied / "test")
    with pytest.raises(DataError, match=r"copy is incomplete: .* test/ is missing"):
        load_data("imagefolder", copied)
    shutil.rmtree(copied / "train")
    with pytest.raises(DataError, match=r"copy is incomplete: .* train/ is missing"):
        load_data("imagefolder", copied)


def test_senseless_size(folder: Path) -> None:
    with pytest.raises(DataError, match="image_size=0"):
        load_data("imagefolder", folder, image_size=0)
    with pytest.raises(DataError, match="normalize='fashion' is for images of 1 channels and an imagefolder has 3"):
        load_data("imagefolder", folder, normalize="fashion")


def test_imagenette(real_data: Path) -> None:
    data = load_data("imagefolder", real_data / "imagenette2-96", image_size=32, batch_size=64)
    assert (data.num_classes, data.train_size, data.test_size) == (10, 1200, 400)
    assert next(data.train(0))[0].shape == (64, 3, 32, 32)


def test_rand_augment_and_erasing_belong_to_the_sample(folder: Path) -> None:
    """Whatever was drawn before, in any worker, a sample of an epoch is varied in the same way."""
    pytest.importorskip("timm")
    options = {"image_size": 24, "batch_size": 4, "rand_augment": "rand-m9-mstd0.5-inc1", "erase": 0.25}
    data = load_data("imagefolder", folder, **options)
    whole = list(data.train(1))
    np.random.rand(7)
    assert same(list(data.train(1, 2)), whole[2:])
    assert same(list(load_data("imagefolder", folder, workers=2, **options).train(1)), whole)
    assert not same(list(load_data("imagefolder", folder, image_size=24, batch_size=4).train(1)), whole)
    with pytest.raises(DataError, match="imagefolder"):
        load_data("fashion", rand_augment="rand-m9")
