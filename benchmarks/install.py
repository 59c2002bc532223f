"""What an installation takes: python benchmarks/install.py [--extras core,lab,all] [PIP ARGUMENT …]

In a fresh virtual environment for each of the core, `[lab]` and `[all]`: seconds and megabytes. Other arguments are
those of the `pip install` that comes first and brings torch:

    python benchmarks/install.py torch torchvision --index-url https://download.pytorch.org/whl/cpu
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6


def pip(folder: Path, *arguments: str) -> float:
    """Install into the environment; returns the seconds it took."""
    start = time.perf_counter()
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def version(folder: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    return subprocess.check_output([str(folder / "bin" / "python"), "-c", code], text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="core,lab,all")
    options, torch = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.extras.split(","):
            extra, folder = "" if name == "core" else f"[{name}]", Path(scratch) / name
            venv.create(folder, with_pip=True)
            empty = megabytes(folder)
            seconds = pip(folder, *(torch or ["torch"]))
            before = megabytes(folder)
            more = pip(folder, f"{ROOT}{extra}")
            after = megabytes(folder)
            print(
                f"rankprune{extra}: torch {version(folder, 'torch')} {before - empty:,.0f} MB in {seconds:.0f} s, "
                f"then {after - before:,.0f} MB in {more:.0f} s; {after - empty:,.0f} MB in all",
                flush=True,
            )
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; nothing from pip's cache")


if __name__ == "__main__":
    main()
