"""`kill -9` at any moment: the folder can be loaded, and the resumed run ends with the bytes of the undisturbed one."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from _processes import Server
from _runs import SMALL, model_bytes

from rankprune.training import checkpoint
from rankprune.training.folder import RunFolder

BASE = ["fashion-rpg-90", *SMALL, "method.every=2", "save.every_steps=2"]
ALL = [*BASE, "amp=bf16", "ema.decay=0.9", "accumulate=3", "clip_norm=1", "save.every_steps=1"]
# name: recipe, processes
CASES: dict[str, tuple[list[str], int]] = {
    "one process": (BASE, 1),
    "AMP, EMA, accumulation, clipping": (ALL, 1),
    "two processes": (BASE, 2),
    "two processes, AMP, EMA, accumulation, clipping": (ALL, 2),
    "two processes, sharded": ([*BASE, "parallel=fsdp"], 2),
}


def folder_of(out: Path) -> Path | None:
    return next((path for path in out.iterdir() if path.is_dir()), None)


@pytest.fixture(scope="module")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any, float]]:
    """By case, when asked for: the model's bytes, the metrics, and how many seconds it takes."""
    found: dict[str, tuple[Any, Any, float]] = {}

    class Lazily(dict):
        def __missing__(self, case: str) -> tuple[Any, Any, float]:
            recipe, world = CASES[case]
            out = tmp_path_factory.mktemp("whole")
            start = time.monotonic()
            server.run(recipe, out, world)
            self[case] = (*ending(out), time.monotonic() - start)
            return self[case]

    return Lazily(found)


def ending(out: Path) -> tuple[Any, Any]:
    folder = folder_of(out)
    assert folder is not None
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).metrics()]
    return model_bytes(folder), lines


def killed_and_resumed(server: Server, case: str, out: Path, delay: float) -> str:
    """Kill all processes after `delay`; says where that was."""
    recipe, world = CASES[case]
    processes = server.start(recipe, out, world)
    time.sleep(delay)
    for process in processes:
        process.send(9)
    codes = {process.wait() for process in processes}  # 5: the second saw that the first was gone
    assert codes <= {-9, 0, 5}, [process.said for process in processes]
    folder = folder_of(out)
    if folder is None or not checkpoint.exists(folder):
        return "before the first checkpoint"
    state, problem = checkpoint.load(folder)
    assert problem == ""
    progress = state["progress"]
    if (folder / "result.json").exists():
        return "after the end"
    return "mid-epoch" if progress["batch"] else "between epochs"


@pytest.mark.parametrize("case", [case for case in CASES if "sharded" not in case])
def test_killed_at_a_random_moment(server: Server, undisturbed: dict[str, Any], tmp_path: Path, case: str) -> None:
    model, lines, seconds = undisturbed[case]
    chance = random.Random(case)
    for _ in range(2):
        killed_and_resumed(server, case, tmp_path, chance.uniform(0.1, 1) * seconds)
    server.run(CASES[case][0], tmp_path, CASES[case][1])
    assert ending(tmp_path) == (model, lines)


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_killed_in_the_midst_of_a_save(server: Server, undisturbed: dict[str, Any], tmp_path: Path, call: str) -> None:
    """Before the data are on the disk, before the old checkpoint is kept, before the new one takes its name."""
    model, lines, _ = undisturbed["one process"]
    for at in (13, 14, 15):  # of the temporary file, of its folder; of next.ckpt and of last.ckpt
        (process,) = server.start(BASE, tmp_path, 1, {"rank": 0, "at": at if call != "link" else at - 10, "kind": call})
        assert process.wait() == -9
        folder = folder_of(tmp_path)
        assert folder is not None
        checkpoint.load(folder)
    server.run(BASE, tmp_path)
    assert ending(tmp_path) == (model, lines)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]
    assert not (folder / "next.ckpt").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_at_fifty_random_moments(server: Server, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Ten a case: five runs, each killed twice at moments spread over its whole length."""
    chance, places = random.Random(0), []
    for case in CASES:
        model, lines, seconds = undisturbed[case]
        for number in range(5):
            out = tmp_path / f"{len(places)}"
            for part in range(2):
                places.append(killed_and_resumed(server, case, out, (number + chance.random()) / 5 * seconds))
                if part == 0 and number == 3:  # and the newest checkpoint is lost as well
                    damage(out)
            server.run(CASES[case][0], out, CASES[case][1])
            assert ending(out) == (model, lines), (case, number)
            shutil.rmtree(out)
    assert len(places) == 50
    assert places.count("mid-epoch") >= 10, places


def damage(out: Path) -> None:
    folder = folder_of(out)
    if folder is not None and (folder / "previous.ckpt").exists() and not (folder / "result.json").exists():
        last = folder / "last.ckpt"
        last.write_bytes(last.read_bytes()[:-100])
