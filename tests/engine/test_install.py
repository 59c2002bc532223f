"""The package with and without a C++ compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rankprune.engine.backend import build

ROOT = Path(__file__).resolve().parents[2]
MISSING = "no-such-compiler"


def test_without_a_compiler_compile_says_how_to_get_the_engine(tmp_path: Path) -> None:
    if list(build.SOURCES.parent.glob(f"*-{build.NAME}")):
        pytest.skip("the kernels were built with the package")
    script = "import torch, rankprune; rankprune.compile(torch.nn.Linear(2, 2).eval(), torch.zeros(1, 2))"
    env = {**os.environ, "CXX": MISSING, "RANKPRUNE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the sparse engine is not built: the compiler no-such-compiler cannot be run")
    assert "install g++ or set CXX" in last


@pytest.mark.long
@pytest.mark.parametrize("there", [True, False])
def test_a_wheel_holds_the_kernels_where_there_is_a_compiler(there: bool, tmp_path: Path) -> None:
    if there:
        try:
            build.compiler()
        except build.NoCompiler:
            pytest.skip("there is no C++ compiler")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    env = os.environ if there else {**os.environ, "CXX": MISSING}
    line = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "-w", str(tmp_path / "wheels")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stdout + done.stderr:
        pytest.skip("setuptools cannot be fetched to build a wheel")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.endswith(build.NAME) for name in names) == there
    assert any(name.endswith("kernels/conv.h") for name in names)  # so that they can be built on first use
