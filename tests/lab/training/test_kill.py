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
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training import checkpoint

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
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """By case, when asked for: the model's bytes and the metrics."""

    class Lazily(dict):
        def __missing__(self, case: str) -> tuple[Any, Any]:
            recipe, world = CASES[case]
            out = tmp_path_factory.mktemp("whole")
            server.run(recipe, out, world)
            self[case] = ending(out)
            return self[case]

    return Lazily()


def ending(out: Path) -> tuple[Any, Any]:
    folder = folder_of(out)
    assert folder is not None
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).metrics()]
    return model_bytes(folder), lines


def kill(server: Server, case: str, out: Path, saves: int, delay: float) -> str:
    """Start or resume, and kill all processes `delay` seconds after so many saves; says where that was."""
    recipe, world = CASES[case]
    folder = folder_of(out) if out.exists() else None
    seen, last = 0, newest(folder)
    processes = server.start(recipe, out, world)
    deadline = time.monotonic() + 120
    while seen < saves and time.monotonic() < deadline and not (folder and (folder / "result.json").exists()):
        time.sleep(0.0005)
        folder = folder or folder_of(out)
        if (now := newest(folder)) != last:
            seen, last = seen + 1, now
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
    if (folder / "result.json").exists():
        return "after the end"
    return "mid-epoch" if state["progress"]["batch"] else "between epochs"


def newest(folder: Path | None) -> int | None:
    """Tells one checkpoint from the next."""
    try:
        return None if folder is None else (folder / "last.ckpt").stat().st_mtime_ns
    except FileNotFoundError:
        return None


# Each alone of what the last case has together: the moments of the long tests suffice for them.
ALONE = ("AMP, EMA, accumulation, clipping", "two processes")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if case in ALONE else ()) for case in CASES if "sharded" not in case],
)
def test_killed_at_a_random_moment(server: Server, undisturbed: dict[str, Any], tmp_path: Path, case: str) -> None:
    chance = random.Random(case)
    places = [kill(server, case, tmp_path, chance.randrange(1, 5), chance.uniform(0, 0.03)) for _ in range(2)]
    assert "after the end" not in places
    server.run(CASES[case][0], tmp_path, CASES[case][1])
    assert ending(tmp_path) == undisturbed[case]


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_killed_in_the_midst_of_a_save(server: Server, undisturbed: dict[str, Any], tmp_path: Path, call: str) -> None:
    """Before the data are on the disk, before the old checkpoint is kept, before the new one takes its name."""
    for at in (13, 14, 15):  # of the temporary file, of its folder; of next.ckpt and of last.ckpt
        (process,) = server.start(BASE, tmp_path, 1, {"rank": 0, "at": at if call != "link" else at - 10, "kind": call})
        assert process.wait() == -9
        folder = folder_of(tmp_path)
        assert folder is not None
        checkpoint.load(folder)
    server.run(BASE, tmp_path)
    assert ending(tmp_path) == undisturbed["one process"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]
    assert not (folder / "next.ckpt").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_at_fifty_random_moments(server: Server, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Ten a case: five runs, each killed twice."""
    chance, places = random.Random(0), []
    for case, (recipe, world) in CASES.items():
        for number in range(5):
            out = tmp_path / f"{len(places)}"
            places += [kill(server, case, out, chance.randrange(most), chance.uniform(0, 0.05)) for most in (9, 4)]
            server.run(recipe, out, world)
            assert ending(out) == undisturbed[case], (case, number)
            shutil.rmtree(out)
    assert len(places) == 50
    assert places.count("mid-epoch") >= 25, places


def test_killed_and_the_newest_checkpoint_damaged(server: Server, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    case = "two processes"
    assert kill(server, case, tmp_path, 3, 0.01) in ("mid-epoch", "between epochs")
    folder = folder_of(tmp_path)
    assert folder is not None
    last = folder / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-100])
    state, problem = checkpoint.load(folder)
    assert "last.ckpt is damaged" in problem
    assert state["progress"]["step"] > 0
    server.run(CASES[case][0], tmp_path, 2)
    assert ending(tmp_path) == undisturbed[case]
