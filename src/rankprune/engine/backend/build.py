"""Compiles the kernels with the system's C++17 compiler. Standard library only, because the package's build runs it."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "kernels"
NAME = "librankprune.so"
_UNDER_WAY = ".building-"
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-Wall", "-Wextra", "-Wno-psabi")
FILES = ("program", "threads", "cores", "variants", "jit")
# Flags by instruction set: the file variant.cpp is compiled once for each.
_X86: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mprefer-vector-width=256"),
}
_ARM: dict[str, tuple[str, ...]] = {"portable": (), "neon": ()}
_OTHER: dict[str, tuple[str, ...]] = {"portable": ()}


class NoCompiler(RuntimeError):
    """There is no C++ compiler, or it cannot compile the kernels."""


def compiler() -> list[str]:
    """Return the compiler's command: $CXX, or the first of the usual names.

    Raises:
        NoCompiler: There is none.
    """
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return [path]
    raise NoCompiler(
        "there is no C++17 compiler: install g++ or clang++, or set CXX, and the engine is built on first use"
    )


def variants(machine: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the instruction sets of a machine, with the compiler's flags.

    Args:
        machine: As `platform.machine` names it; by default this one.

    Returns:
        Flags by instruction set.
    """
    machine = (machine or platform.machine()).lower()
    return _X86 if machine in ("x86_64", "amd64") else _ARM if machine in ("aarch64", "arm64") else _OTHER


def digest() -> str:
    """Return a digest of sources and flags; a library that was built from others is not used."""
    hasher = hashlib.sha256(repr((COMMON, FILES, variants())).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".h", ".cpp"):
            hasher.update(path.name.encode() + path.read_bytes())
    return hasher.hexdigest()[:16]


def objects(
    folder: Path, command: list[str], flags: tuple[str, ...] = ("-O3",), machine: str | None = None
) -> list[Path]:
    """Compile every source, in parallel.

    Args:
        folder: Folder for the object files.
        command: The compiler's command.
        flags: Further flags.
        machine: As `platform.machine` names it; by default this one.

    Returns:
        The object files.

    Raises:
        NoCompiler: The compiler fails.
    """
    jobs: list[tuple[str, Path, tuple[str, ...]]] = [(name, SOURCES / f"{name}.cpp", ()) for name in FILES]
    jobs += [(f"variant_{v}", SOURCES / "variant.cpp", (f"-DRP_VARIANT={v}", *f)) for v, f in variants(machine).items()]

    def one(job: tuple[str, Path, tuple[str, ...]]) -> Path:
        name, source, own = job
        object_file = folder / f"{name}.o"
        _call([*command, *COMMON, *flags, *own, "-c", str(source), "-o", str(object_file)])
        return object_file

    with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        return list(pool.map(one, jobs))


def build(folder: Path) -> Path:
    """Compile and link the library, under a name that contains the digest of its content.

    Args:
        folder: Folder to write into.

    Returns:
        The library.

    Raises:
        NoCompiler: There is no compiler, or it fails.
    """
    command = compiler()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_UNDER_WAY, dir=folder) as place:
        library = Path(place) / NAME
        parts = map(str, objects(Path(place), command))
        _call([*command, "-shared", "-pthread", *parts, "-o", str(library)])
        target = folder / f"{digest()}-{_content(library)}-{NAME}"
        os.replace(library, target)
    return target


def find(folder: Path) -> Path | None:
    """Find the intact library of these sources in a folder; loading a damaged one would crash the process.

    Args:
        folder: The folder.

    Returns:
        The library, or None.
    """
    for path in sorted(folder.glob(f"{digest()}-*-{NAME}")):
        with contextlib.suppress(OSError):
            if path.name == f"{digest()}-{_content(path)}-{NAME}":
                return path
    return None


def find_or_build(folder: Path) -> Path:
    """Find the library in a cache folder, and build it if it is missing or damaged.

    If the folder cannot be written, the library is built in a temporary folder that is deleted with the process.

    Args:
        folder: The cache folder.

    Returns:
        The library.

    Raises:
        NoCompiler: There is no compiler, or it fails.
    """
    if library := find(folder):
        return library
    try:
        with _alone(folder) as alone:
            library = find(folder)  # another process may have built it while this one waited
            if library is None:
                if alone:
                    _remove_leftovers(folder)
                library = build(folder)
            return library
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="rankprune-kernels-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        warn_unwritable(folder, error)
        return build(temporary)


_warned = False


def warn_unwritable(folder: Path, error: OSError) -> None:
    """Warn, once per process, that the cache cannot be written.

    Args:
        folder: The folder.
        error: Why it cannot be written.
    """
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"the cache folder {folder} cannot be used ({error.strerror or error}), so each process compiles and tunes "
            "its kernels again: set RANKPRUNE_CACHE to a folder that can be written",
            stacklevel=3,
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Let one process build at a time. Yields False if there are no file locks, in which case all may build."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it however the process ends
        except (ImportError, OSError):
            yield False
        else:
            yield True


def _remove_leftovers(folder: Path) -> None:
    """Remove files of killed builds, and damaged libraries of these sources. Call it only while holding the lock."""
    for path in folder.glob(f"{_UNDER_WAY}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"{digest()}-*{NAME}"):
        path.unlink(missing_ok=True)


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompiler(
            f"the compiler {command[0]} cannot be run ({error.strerror}): install g++ or set CXX"
        ) from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise NoCompiler(f"{command[0]} could not compile the kernels ({first}): install g++ 9 or newer, or set CXX")
