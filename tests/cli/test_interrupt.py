"""Ctrl-C: the run is saved, one sentence names the command that continues it, and that command does."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from _signals import hear_ctrl_c


@pytest.mark.long
def test_the_printed_command_continues_the_run(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\nNet = lambda: nn.Sequential(nn.Flatten(), nn.Linear(196, 10))\n")
    words = "train --model net.py:Net save.every_steps=2 data.limit_test=50 data.batch_size=4 epochs=4 fashion-gmp-90 --out o"
    program = [sys.executable, "-m", "rankprune"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*program, *words.split()], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not list(tmp_path.glob("o/*/last.ckpt")):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        last = process.communicate(timeout=120)[1].splitlines()[-1]
    assert process.returncode == 130, last
    printed = re.fullmatch(r"rankprune: Stopped at step \d+ of \d+ and saved in (\S+); continue with `rankprune (.*)`\.", last)
    assert printed, last
    command = [*program, *shlex.split(printed[2])]
    again = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert re.search(r"resumed at step \d+ of ", again.stderr), again.stderr
    assert f"The run is finished: {printed[1]}" in again.stdout
