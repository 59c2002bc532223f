"""What can go wrong in a run: each time a sentence, a saved state, the right exit code, and no hang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _processes import Server

from _runs import SMALL, model_bytes
from rankprune.lab.training import checkpoint

# BatchNorm and dropout: what a failed batch has touched must be put back. 20 steps, of which none is saved by itself
# before the tenth.
RECIPE = ["fashion-rpg-90", *SMALL, "method.every=2", "epochs=2"]
SHARDED = [*RECIPE, "parallel=fsdp"]


def folder_of(out: Path) -> Path:
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def saved(out: Path) -> int:
    state, problem = checkpoint.load(folder_of(out))
    assert problem == ""
    step: int = state["progress"]["step"]
    return step


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The model of an undisturbed run, by the number of processes."""
    found = {}
    for world in (1, 2):
        out = tmp_path_factory.mktemp(f"whole{world}")
        server.run(RECIPE, out, world)
        found[world] = model_bytes(folder_of(out))
    return found


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
def test_a_batch_that_raises(server: Server, whole: dict[int, Any], tmp_path: Path, world: int) -> None:
    processes = server.start(RECIPE, tmp_path, world, {"rank": world - 1, "at": 8, "kind": "data"})
    codes = [p.wait() for p in processes]
    assert codes == ([2] if world == 1 else [1, 2])
    sentence = processes[-1].sentence
    assert "image 17 is no image: remove it (at step 8 of " in sentence
    assert "saved at step 7; fix it and add --resume)" in sentence
    assert world == 1 or all(line.startswith("rankprune: warning: ") for line in processes[0].said.splitlines())
    assert saved(tmp_path) == 7
    server.run(RECIPE, tmp_path, world)
    assert model_bytes(folder_of(tmp_path)) == whole[world]


@pytest.mark.long
def test_a_sharded_run_saves_what_it_has_when_a_batch_raises(server: Server, tmp_path: Path) -> None:
    processes = server.start(SHARDED, tmp_path, 2, {"rank": 1, "at": 8, "kind": "data"})
    assert [p.wait() for p in processes] == [1, 2]
    assert saved(tmp_path) == 7


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_forward_pass_that_raises(server: Server, whole: dict[int, Any], tmp_path: Path, rank: int) -> None:
    """Only one process knows; the other finds it gone, and whichever is the main one has saved the last whole step."""
    processes = server.start(RECIPE, tmp_path, 2, {"rank": rank, "at": 6, "kind": "forward"})
    assert processes[rank].wait() == 1
    assert "AttributeError: 'Tensor' object has no attribute 'nonsense' (at step 6" in processes[rank].sentence
    assert processes[1 - rank].wait() == 5
    assert "stopped responding at step 6" in processes[1 - rank].sentence
    assert saved(tmp_path) == 5
    server.run(RECIPE, tmp_path, 2)
    assert model_bytes(folder_of(tmp_path)) == whole[2]


@pytest.mark.long
def test_a_process_that_dies(server: Server, whole: dict[int, Any], tmp_path: Path) -> None:
    processes = server.start(RECIPE, tmp_path, 2, {"rank": 1, "at": 9, "kind": "kill"})
    assert [p.wait(60) for p in processes] == [5, -9]
    assert "stopped responding at step 9, saved at step 8: start them all again with --resume" in processes[0].sentence
    assert saved(tmp_path) == 8
    server.run(RECIPE, tmp_path, 2)
    assert model_bytes(folder_of(tmp_path)) == whole[2]


@pytest.mark.long
def test_the_main_process_dies(server: Server, whole: dict[int, Any], tmp_path: Path) -> None:
    recipe = [*RECIPE, "save.every_steps=4"]
    processes = server.start(recipe, tmp_path, 2, {"rank": 0, "at": 7, "kind": "kill"})
    assert [p.wait(60) for p in processes] == [-9, 5]
    assert "stopped responding at step 7, saved at step 4" in processes[1].sentence
    assert saved(tmp_path) == 4
    server.run(recipe, tmp_path, 2)
    assert model_bytes(folder_of(tmp_path)) == whole[2]


@pytest.mark.long
def test_a_process_of_a_sharded_run_dies(server: Server, tmp_path: Path) -> None:
    recipe = [*SHARDED, "save.every_steps=4"]
    processes = server.start(recipe, tmp_path, 2, {"rank": 1, "at": 7, "kind": "kill"})
    assert [p.wait(60) for p in processes] == [5, -9]
    assert "saved at step 4" in processes[0].sentence  # a part of the state is gone with the process
    assert saved(tmp_path) == 4


@pytest.mark.long
def test_a_process_that_hangs_is_given_up(server: Server, tmp_path: Path) -> None:
    processes = server.start(RECIPE, tmp_path, 2, {"rank": 1, "at": 9, "kind": "hang"}, RANKPRUNE_TIMEOUT="5")
    try:
        assert processes[0].wait(90) == 5
    finally:
        processes[1].send(9)
    assert "stopped responding at step 9, saved at step 8" in processes[0].sentence
    assert processes[1].wait() == -9


@pytest.mark.parametrize("world", [1, 2])
def test_a_loss_that_is_not_finite(server: Server, tmp_path: Path, world: int) -> None:
    processes = server.start(RECIPE, tmp_path, world, {"rank": world - 1, "at": 5, "kind": "nan"})
    assert [p.wait() for p in processes] == [3] * world
    assert "The loss is nan at step 5 (epoch 1)" in processes[0].sentence
    assert "saved at step 4: lower optimizer.lr" in processes[0].sentence
    state, _ = checkpoint.load(folder_of(tmp_path))
    assert state["progress"]["step"] == 4
    assert all(value.isfinite().all() for value in state["model"].values())  # running statistics as well


@pytest.mark.long
def test_masks_that_differ_stop_the_run(server: Server, whole: dict[int, Any], tmp_path: Path) -> None:
    recipe = [*RECIPE, "save.every_steps=3"]
    processes = server.start(recipe, tmp_path, 2, {"rank": 1, "at": 8, "kind": "mask"})
    assert [p.wait() for p in processes] == [6, 6]
    assert "The masks of process 1 are not those of process 0 at step 9" in processes[0].sentence
    assert saved(tmp_path) == 6  # before the difference
    server.run(recipe, tmp_path, 2)
    assert model_bytes(folder_of(tmp_path)) == whole[2]


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
def test_a_disk_that_is_full(server: Server, whole: dict[int, Any], tmp_path: Path, world: int) -> None:
    recipe = [*RECIPE, "save.every_steps=1"]
    processes = server.start(recipe, tmp_path, world, {"rank": 0, "at": 6, "kind": "full"})
    assert [p.wait() for p in processes] == [1] * world
    assert "could not be written (File too large): what was saved before is intact" in processes[0].sentence
    assert saved(tmp_path) == 4  # the fifth step was to be saved when the sixth batch was there
    assert not list(folder_of(tmp_path).glob(".*ckpt*"))
    server.run(recipe, tmp_path, world)
    assert model_bytes(folder_of(tmp_path)) == whole[world]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 1 MB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system can only be mounted by who may: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.long
def test_a_file_system_without_space(server: Server, whole: dict[int, Any], disk: Path, tmp_path: Path) -> None:
    recipe = [*RECIPE, "save.every_steps=1"]
    fill = f"sh dd if=/dev/zero of={disk}/ballast bs=4k 2>/dev/null || true"
    (process,) = server.start(recipe, disk, 1, {"rank": 0, "at": 6, "kind": fill}, logs_in=tmp_path)
    assert process.wait() == 1
    assert "could not be written (No space left on device): what was saved before is intact" in process.sentence
    assert saved(disk) == 4
    (disk / "ballast").unlink()
    server.run(recipe, disk)
    assert model_bytes(folder_of(disk)) == whole[1]


@pytest.mark.long
def test_a_folder_that_becomes_read_only(server: Server, whole: dict[int, Any], disk: Path, tmp_path: Path) -> None:
    recipe = [*RECIPE, "save.every_steps=1"]
    # A second view of the same disk, laid over it: files that are open stay so, as on a disk that failed.
    close = f"sh mount --bind {disk} {disk} && mount -o remount,bind,ro {disk}"
    (process,) = server.start(recipe, disk, 1, {"rank": 0, "at": 6, "kind": close}, logs_in=tmp_path)
    assert process.wait() == 1
    assert "could not be written (Read-only file system): what was saved before is intact" in process.sentence
    assert saved(disk) == 4
    subprocess.run(["umount", str(disk)], check=True)
    server.run(recipe, disk)
    assert model_bytes(folder_of(disk)) == whole[1]


def test_a_folder_that_is_read_only(server: Server, tmp_path: Path) -> None:
    """For root nothing is read-only by its mode: a folder below a file cannot be made by anyone."""
    place = tmp_path / "closed"
    if os.geteuid():
        place.mkdir(mode=0o555)
    else:
        place.write_text("")
    (process,) = server.start(RECIPE, place / "runs", logs_in=tmp_path)
    assert process.wait() == 2  # found before any training
    assert f"{place / 'runs'}" in process.sentence
    assert ("cannot be written" if os.geteuid() else "is a file") in process.sentence
