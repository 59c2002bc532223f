"""The kernels as a library built with AddressSanitizer and UBSan, for an ordinary Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rankprune.engine.backend import build

KINDS = "-fsanitize=address,undefined"


def supports(command: list[str], flag: str, folder: Path) -> bool:
    """Whether the compiler has a sanitizer that runs here."""
    source = folder / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    probe = folder / "probe"
    built = subprocess.run([*command, flag, str(source), "-o", str(probe)], capture_output=True, check=False)
    return built.returncode == 0 and subprocess.run([str(probe)], capture_output=True, check=False).returncode == 0


def sanitized_library(folder: Path, optimized: str = "-O1") -> tuple[Path, dict[str, str]]:
    """The library and the environment that a process needs to load it; the test is skipped where there can be none."""
    try:
        command = build.compiler()
    except build.NoCompiler:
        pytest.skip("there is no C++ compiler")
    if not supports(command, KINDS, folder):
        pytest.skip("the compiler has no address sanitizer that runs here")
    found = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_file():
        pytest.skip("the compiler's libasan.so, which a sanitized library needs in an ordinary Python, is not there")
    library = folder / "sanitized.so"
    flags = (optimized, KINDS, "-fno-sanitize-recover=all")
    objects = build.objects(folder, command, flags)
    subprocess.run([*command, *flags, "-shared", "-pthread", *map(str, objects), "-o", str(library)], check=True)
    # Python leaks on its own; too large a piece of memory is a MemoryError as it is elsewhere.
    options = "detect_leaks=0:allocator_may_return_null=1:hard_rss_limit_mb=1500"
    return library, {**os.environ, "LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": options}
