"""The kernels' own test program under the sanitizers, and on another processor under emulation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from _sanitized import sanitized_library, supports
from rankprune.engine.backend import build

SOURCE = Path(__file__).with_name("kernels_test.cpp")


def make(folder: Path, command: list[str], flags: tuple[str, ...], machine: str | None = None) -> Path:
    """The test program, linked with kernels compiled by the same flags."""
    made = folder / "kernels_test"
    objects = build.objects(folder, command, flags, machine)
    line = [
        *command,
        *build.COMMON,
        *flags,
        f"-I{build.SOURCES}",
        str(SOURCE),
        *map(str, objects),
        "-pthread",
        "-o",
        str(made),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return made


@pytest.mark.long
@pytest.mark.parametrize("kinds", ["address,undefined", "thread"])
def test_under_sanitizers(kinds, tmp_path):
    try:
        command = build.compiler()
    except build.NoCompiler:
        pytest.skip("there is no C++ compiler")
    if not supports(command, f"-fsanitize={kinds}", tmp_path):
        pytest.skip(f"the compiler has no {kinds} sanitizer that runs here")
    program = make(tmp_path, command, ("-O1", "-g", f"-fsanitize={kinds}", "-fno-sanitize-recover=all"))
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=500)
    assert (done.returncode, done.stdout) == (0, "all kernels agree\n"), done.stderr[-3000:]


EVERY_KERNEL = """
import sys
from pathlib import Path
import pytest
from rankprune.engine.backend import native, selfcheck
found = native.bind(Path(sys.argv[1]))
native.library = lambda: found
assert all(map(selfcheck.agrees, native.variants()))
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.long
def test_every_operator_with_addresses_checked(tmp_path):
    """The library itself built with AddressSanitizer and UBSan, in a Python that runs networks of all operators."""
    library, env = sanitized_library(tmp_path)
    tests = [str(SOURCE.with_name(name)) for name in ("test_planfile.py", "test_untrusted_plans.py")]
    line = [sys.executable, "-c", EVERY_KERNEL, str(library), *tests]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]


@pytest.mark.long
def test_neon_under_emulation(tmp_path):
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not emulator:
        pytest.skip("NEON needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)")
    program = make(tmp_path, [compiler, "-static"], ("-O2",), "aarch64")
    done = subprocess.run([emulator, str(program)], capture_output=True, text=True, check=False, timeout=500)
    assert (done.returncode, done.stdout) == (0, "all kernels agree\n"), done.stderr[-3000:]


def test_plain(tmp_path):
    try:
        command = build.compiler()
    except build.NoCompiler:
        pytest.skip("there is no C++ compiler")
    done = subprocess.run(
        [str(make(tmp_path, command, ("-O1",)))], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "all kernels agree\n"), done.stderr[-3000:]
