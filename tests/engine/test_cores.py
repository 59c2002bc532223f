"""On which cores the workers of the pool run: those that share the caller's L3 cache."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from rankprune.engine.backend import native

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which CPUs share a cache")
ROOT = Path("/sys/devices/system/cpu")


def machine(root: Path, l3: list[str], cores: list[str]) -> Path:
    """CPUs as Linux describes them: two L1 caches and an L2 cache of each core, and L3 caches."""

    def cpus(text: str) -> list[int]:
        ends = [[int(n) for n in part.split("-")] for part in text.split(",")]
        return [cpu for part in ends for cpu in range(part[0], part[-1] + 1)]

    for caches, levels in ((cores, (1, 1, 2)), (l3, (3,))):
        for shared in caches:
            for cpu in cpus(shared):
                for level in levels:
                    folder = root / f"cpu{cpu}" / "cache"
                    folder.mkdir(parents=True, exist_ok=True)
                    index = folder / f"index{len(list(folder.iterdir()))}"
                    index.mkdir()
                    (index / "level").write_text(f"{level}\n")
                    (index / "shared_cpu_list").write_text(f"{shared}\n")
    return root


@pytest.fixture
def two(tmp_path):
    """Two L3 caches with four cores of two hyperthreads each, numbered as AMD does."""
    return machine(tmp_path, ["0-3,8-11", "4-7,12-15"], [f"{core},{core + 8}" for core in range(8)])


@pytest.mark.parametrize(
    ("cpu", "threads", "allowed", "want"),
    [
        (0, 2, range(16), [0, 1, 2, 3, 8, 9, 10, 11]),
        (13, 4, range(16), [4, 5, 6, 7, 12, 13, 14, 15]),
        (0, 5, range(16), []),  # eight CPUs, but four cores
        (0, 2, [0, 1, 4, 5], [0, 1]),
        (0, 2, [0, 8, 4, 5], []),  # one core
        (0, 3, [0, 1, 4, 5], []),
        (0, 2, [0, 1, 2], []),  # all in one L3 as it is
        (5, 2, [0, 1, 2], []),  # the caller was moved out of what it may use
        (16, 2, range(17), []),  # a CPU that is not described
    ],
)
def test_workers_share_the_cache_of_the_caller(two, cpu, threads, allowed, want):
    assert native.near_cpus(two, cpu, threads, list(allowed)) == want


def test_one_cache_and_an_unknown_machine_leave_the_workers_alone(tmp_path):
    assert native.near_cpus(tmp_path / "none", 0, 2, [0, 1]) == []
    assert native.near_cpus(machine(tmp_path, ["0-3"], ["0", "1", "2", "3"]), 0, 2, [0, 1, 2, 3]) == []


@pytest.mark.parametrize("text", ["", "x", "0-", "0-3;8", "3-0", "-1", "0-99999", "0,,1"])
def test_a_list_that_cannot_be_read_is_none(two, text):
    (two / "cpu0" / "cache" / "index3" / "shared_cpu_list").write_text(text)
    assert native.near_cpus(two, 0, 2, list(range(16))) == []


def test_the_affinity_of_the_caller_stays_and_workers_keep_to_what_it_may_use():
    before = {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}
    allowed = os.sched_getaffinity(0)
    native.peak(native.variants()[-1], 2)
    assert os.sched_getaffinity(0) == allowed
    for task in set(map(int, os.listdir("/proc/self/task"))) - {threading.get_native_id()}:
        if task not in before:
            assert os.sched_getaffinity(task) <= allowed
