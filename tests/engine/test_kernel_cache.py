"""The cache of compiled kernels: a damaged library, a folder that cannot be used, builds that were killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankprune.engine.backend import build, native, selfcheck

# A compiler that takes no time: it counts its calls and "links" by copying a library that the real one has made.
COMPILER = """\
echo "$@" >> '{calls}'
for target; do :; done  # the last argument
case " $* " in *" -shared "*) cp '{library}' "$target";; *) : > "$target";; esac
"""
USE = """
import warnings
warnings.simplefilter("always")
import numpy as np
from rankprune.engine.backend import native
print(native.variants()[-1])
"""


@pytest.fixture(scope="module")
def library() -> Path:
    if build.find(build.SOURCES.parent):
        pytest.skip("the kernels were built with the package")
    try:
        return build.find_or_build(native.cache_folder() / "kernels")
    except build.NoCompiler:
        pytest.skip("there is no C++ compiler")


class Cache:
    """A cache folder, and processes that load the kernels from it."""

    def __init__(self, root: Path, library: Path) -> None:
        self.folder, self.calls, self.library = root / "cache" / "kernels", root / "calls", library
        script = root / "compiler.sh"
        script.write_text(COMPILER.format(calls=self.calls, library=library))
        self.compiler = f"sh {script}"

    def use(self, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "CXX": self.compiler, "RANKPRUNE_CACHE": str(cache or self.folder.parent)}
        return subprocess.run([sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=False)

    def links(self) -> int:
        return sum("-shared" in line for line in self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def libraries(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.endswith(build.NAME)]


@pytest.fixture
def cache(tmp_path: Path, library: Path) -> Cache:
    return Cache(tmp_path, library)


def test_built_once_and_found_again(cache: Cache) -> None:
    for _ in range(2):
        done = cache.use()
        assert (done.returncode, done.stdout, done.stderr) == (0, "portable\n", "")
    assert cache.links() == 1
    assert len(cache.libraries()) == 1


@pytest.mark.parametrize("damage", ["cut", "zeros", "one bit", "text"])
def test_a_damaged_library_is_never_loaded_and_built_again(damage: str, cache: Cache) -> None:
    assert cache.use().returncode == 0
    (path,) = cache.libraries()
    whole = path.read_bytes()
    page = bytearray(whole)
    if damage == "zeros":
        page[4096:-4096] = bytes(len(page) - 8192)
    if damage == "one bit":
        page[len(page) // 2] ^= 1
    wrong = {"cut": whole[: len(whole) // 2], "text": b"not a library"}
    path.write_bytes(wrong.get(damage, bytes(page)))
    done = cache.use()
    assert (done.returncode, done.stdout, done.stderr) == (0, "portable\n", "")
    assert cache.links() == 2
    (path,) = cache.libraries()
    assert path.read_bytes() == whole


def test_a_folder_that_is_a_file_is_replaced_by_a_temporary_one(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cache.use(tmp_path / "file")
    assert (done.returncode, done.stdout) == (0, "portable\n")
    assert "UserWarning: the cache folder" in done.stderr
    assert "set RANKPRUNE_CACHE to a folder that can be written" in done.stderr
    made = cache.calls.read_text().splitlines()[-1].split(" -o ")[1]
    assert not Path(made).parent.parent.exists()  # it went with the process


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that not even root may write")
def test_a_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(cache: Cache) -> None:
    done = cache.use(Path("/proc/rankprune"))
    assert (done.returncode, done.stdout) == (0, "portable\n")
    assert done.stderr.count("UserWarning") == 1


def test_what_a_killed_build_left_is_removed(cache: Cache, tmp_path: Path) -> None:
    """A build is killed while it compiles; the next one removes its folder and is not held up by its lock."""
    slow = tmp_path / "slow.sh"
    slow.write_text(f": > '{tmp_path / 'begun'}'; exec sleep 600")
    env = {**os.environ, "CXX": f"sh {slow}", "RANKPRUNE_CACHE": str(cache.folder.parent)}
    building = subprocess.Popen([sys.executable, "-c", USE], env=env, start_new_session=True)
    while not (tmp_path / "begun").exists():
        assert building.poll() is None
        time.sleep(0.02)
    os.killpg(building.pid, signal.SIGKILL)
    building.wait()
    left = [path for path in cache.folder.iterdir() if path.is_dir()]
    assert len(left) == 1
    assert cache.use().returncode == 0
    assert [path for path in cache.folder.iterdir() if path.is_dir()] == []


def test_two_processes_build_once(cache: Cache) -> None:
    env = {**os.environ, "CXX": cache.compiler, "RANKPRUNE_CACHE": str(cache.folder.parent)}
    both = [subprocess.Popen([sys.executable, "-c", USE], env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert cache.links() == 1


def test_a_library_of_other_sources_stays(cache: Cache) -> None:
    """Two versions of the package share a cache folder."""
    cache.folder.mkdir(parents=True)
    other = cache.folder / f"0123456789abcdef-0123456789abcdef-{build.NAME}"
    shutil.copy(cache.library, other)
    assert cache.use().returncode == 0
    assert other.exists()
    assert len(cache.libraries()) == 2


def test_agreement_with_the_portable_kernels_is_remembered_and_disagreement_is_not(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(native.variants()) == 1:
        pytest.skip("this CPU has the portable kernels only")
    monkeypatch.setattr(native, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(selfcheck, "cache_folder", lambda: tmp_path)
    checked: list[str] = []
    sound = True

    def agrees(variant: str) -> bool:
        checked.append(variant)
        return sound

    def best() -> str:
        selfcheck.best_variant.cache_clear()  # as in a new process
        try:
            return selfcheck.best_variant()
        finally:
            selfcheck.best_variant.cache_clear()

    monkeypatch.setattr(selfcheck, "agrees", agrees)
    first, *others = native.variants()
    sound = False
    for _ in range(2):
        with pytest.warns(UserWarning, match="disagree"):
            assert best() == others[-1]
    assert checked == [first, *others[:-1]] * 2
    sound = True
    checked.clear()
    assert [best(), best()] == [first, first]
    assert checked == [first]
    monkeypatch.setattr(selfcheck, "cpu_model", lambda: "another CPU")
    assert best() == first
    assert checked == [first, first]
