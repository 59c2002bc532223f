"""The runtime without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"


def test_the_runtime_does_not_import_torch():
    code = (
        "import sys, rankprune.engine.runtime as r; assert 'torch' not in sys.modules; print(r.default_threads() > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SRC), "PATH": ""},
    )
    assert done.stdout == "True\n"
