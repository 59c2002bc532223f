"""What `compile` shows while it works, and what it says when its cache cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rankprune as rp
from rankprune.engine.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_step_on_one_line_that_is_removed() -> None:
    stream = Terminal()
    with progress(stream) as say:
        say("torch.export")
        say("tuning layer 1 of 2")
    assert stream.getvalue().split("\r\x1b[2K") == [
        "", "rankprune compile: torch.export", "rankprune compile: tuning layer 1 of 2", "",
    ]  # fmt: skip


def test_nothing_is_shown_elsewhere() -> None:
    stream = io.StringIO()
    with progress(stream) as say:
        say("torch.export")
    assert stream.getvalue() == ""


def test_compile_names_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    rp.compile(net, torch.zeros(1, 3, 12, 12), threads=1)
    steps = [step.removeprefix("rankprune compile: ") for step in stream.getvalue().split("\r\x1b[2K") if step]
    known = ["torch.export", "lowering", "tuning layer 1 of 2", "tuning layer 2 of 2", "verifying"]
    assert [step for step in steps if step in known] == known
    assert steps[-1] == "comparing with torch"


USE = """
import warnings
warnings.simplefilter("always")
import torch
from torch import nn
import rankprune as rp
for n in (12, 13):
    rp.compile(nn.Sequential(nn.Conv2d(3, 8, 3)).eval(), torch.zeros(1, 3, n, n), threads=1)
print("compiled")
"""


def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    """A file stands where the folder should be: this also holds for root, who may write everywhere."""
    from rankprune.engine.backend import build, native

    cache = tmp_path / "cache"
    (cache / "kernels").mkdir(parents=True)
    built = build.find(native.cache_folder() / "kernels") or build.find(build.SOURCES.parent)
    if built is None:
        pytest.skip("the kernels are not built")
    (cache / "kernels" / built.name).symlink_to(built)
    (cache / "choices").write_text("")
    env = {**os.environ, "RANKPRUNE_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "compiled\n", done.stderr
    assert done.stderr.count("set RANKPRUNE_CACHE to a folder that can be written") == 1
