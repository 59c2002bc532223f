from __future__ import annotations

import hashlib
import os
import pickle
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from test_array_pickle import python2_pickle

from rankprune.lab.data import DataError, load_data
from rankprune.lab.data.cifar10 import BINARY, LAYOUTS, PICKLED, Layout, download_cifar10, read_cifar10

ROWS = 4


def tiny(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pixels and labels of six small batches."""
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(0, 256, (ROWS, 3072), np.uint8), rng.integers(0, 10, ROWS)) for name in PICKLED}


def write(folder: Path, files: dict[str, bytes]) -> Layout:
    """Write the files and return the layout that expects them."""
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return Layout(folder.name, {name: f"sha1:{hashlib.sha1(raw).hexdigest()}" for name, raw in files.items()})


def binary(parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, bytes]:
    return {
        f"{name}.bin": np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes()
        for name, (pixels, labels) in parts.items()
    }


def pickled(parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, bytes]:
    return {
        name: python2_pickle(pixels, labels.tolist(), "numpy.core.multiarray")
        for name, (pixels, labels) in parts.items()
    }


def test_both_layouts_give_the_same_images(tmp_path: Path) -> None:
    parts = tiny()
    bin_layout = write(tmp_path / "a" / "cifar-10-batches-bin", binary(parts))
    py_layout = write(tmp_path / "b" / "cifar-10-batches-py", pickled(parts))
    one = read_cifar10(tmp_path / "a", (bin_layout,))
    for root in (tmp_path / "b", tmp_path / "b" / "cifar-10-batches-py"):
        other = read_cifar10(root, (bin_layout, py_layout))
        for field in ("train_images", "train_labels", "test_images", "test_labels"):
            assert torch.equal(getattr(one, field), getattr(other, field))
    assert one.train_images.shape == (5 * ROWS, 3, 32, 32)
    pixels, labels = parts["data_batch_2"]
    # A row is 1024 red, 1024 green and 1024 blue pixels, each in row-major order.
    assert one.train_images[ROWS + 1, 2, 5, 7] == pixels[1, 2 * 1024 + 5 * 32 + 7]
    assert one.train_labels[ROWS : 2 * ROWS].tolist() == labels.tolist()
    assert one.test_labels.tolist() == parts["test_batch"][1].tolist()


def test_the_official_checksums_are_the_default(tmp_path: Path) -> None:
    assert [layout.digests for layout in LAYOUTS] == [BINARY, PICKLED]
    for folder, files, algorithm in (
        ("cifar-10-batches-bin", binary(tiny()), "sha1 begins \\w{8} and not aadd24ac"),
        ("cifar-10-batches-py", pickled(tiny()), "md5 begins \\w{8} and not c99cafc1"),
    ):
        write(tmp_path / folder / folder, files)
        with pytest.raises(DataError, match=rf"data_batch_1(\.bin)? is corrupt \(.*{algorithm}\)"):
            load_data("cifar10", tmp_path / folder)


def test_missing_file_is_named(tmp_path: Path) -> None:
    layout = write(tmp_path / "cifar-10-batches-bin", binary(tiny()))
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is incomplete: data_batch_3\.bin missing"):
        read_cifar10(tmp_path, (layout,))
    complete = write(tmp_path / "cifar-10-batches-py", pickled(tiny()))
    assert len(read_cifar10(tmp_path, (layout, complete)).test_labels) == ROWS


def test_absent_and_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no data folder .*nowhere"):
        load_data("cifar10", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no CIFAR-10, neither cifar-10-batches-bin nor cifar-10-batches-py: .* data\.download=true"):
        load_data("cifar10", tmp_path)


class Command:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (pickle.dumps({b"data": Command()}, 3), r"it asks for \w+\.system"),
        (pickle.dumps({b"labels": [1]}, 3), "data"),
        (pickle.dumps({b"labels": [1], b"data": np.zeros((2, 3072), np.uint8)}, 3), r"uint8 \(2, 3072\) for 1 labels"),
        (pickle.dumps({b"labels": [11], b"data": np.zeros((1, 3072), np.uint8)}, 3), "for 1 labels"),
        (b"no pickle", ""),
    ],
)
def test_right_checksum_of_a_wrong_file(tmp_path: Path, raw: bytes, reason: str) -> None:
    layout = write(tmp_path / "cifar-10-batches-py", {**pickled(tiny()), "data_batch_4": raw})
    with pytest.raises(DataError, match=rf"data_batch_4 is not a file of CIFAR-10 \(.*{reason}") as caught:
        read_cifar10(tmp_path, (layout,))
    assert "\n" not in str(caught.value)


def test_cut_binary_file(tmp_path: Path) -> None:
    files = binary(tiny())
    layout = write(tmp_path / "cifar-10-batches-bin", {**files, "test_batch.bin": files["test_batch.bin"][:-5]})
    with pytest.raises(DataError, match=r"test_batch\.bin is not a file of CIFAR-10"):
        read_cifar10(tmp_path, (layout,))


def test_download_without_a_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    with socket.socket() as free:  # a port that nobody answers
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(DataError, match=r"could not be downloaded into .* \(.*refused.*give the folder") as caught:
            load_data("cifar10", tmp_path, download=True)
    assert "\n" not in str(caught.value)


def test_the_real_files(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    download_cifar10(real_data)  # complete, so nothing is fetched
    data = load_data("cifar10", real_data, batch_size=128, image_size=16, seed=4)
    assert (data.train_size, data.test_size, data.batches_per_epoch, data.image_size) == (50_000, 10_000, 390, 16)
    labels = torch.cat([y for _, y in data.test()])
    assert labels.bincount().tolist() == [1000] * 10
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]  # cat, ship, ship, airplane, frog, ...
    x, y = next(data.train(2, 389))
    assert x.shape == (128, 3, 16, 16)
    again, same = list(data.train(2, 388))[1]
    assert torch.equal(x, again)
    assert torch.equal(y, same)


def test_the_statistics_are_those_of_the_training_images(real_data: Path) -> None:
    images = read_cifar10(real_data).train_images
    for channel, (mean, std) in enumerate(zip((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))):
        pixels = images[:, channel].double() / 255
        assert pixels.mean().item() == pytest.approx(mean, abs=2e-4)
        assert pixels.std().item() == pytest.approx(std, abs=2e-4)
