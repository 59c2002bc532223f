"""Torch's OpenMP threads do not wait in long loops, whichever package was imported first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TRAIN = """
import resource
net = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(),
                          torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
torch.set_num_threads(2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
sp = rankprune.attach(net, optimizer, "gmp", sparsity=0.9, total_steps=40)
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range(40):
    net(torch.randn(64, 8, 16, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
HELPERS = "import threading; print([t.name for t in threading.enumerate() if t.name == 'rankprune-openmp'])"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)


def test_imported_first_we_choose_through_the_environment() -> None:
    shown = python("import rankprune, torch", OMP_DISPLAY_ENV="VERBOSE").stderr
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("this torch does not use libgomp")
    assert "GOMP_SPINCOUNT = '1000'" in shown


def test_a_choice_of_the_users_own_stays() -> None:
    show = "import os, rankprune; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert python(show, GOMP_SPINCOUNT="7").stdout == "7\n"
    assert python(show, OMP_WAIT_POLICY="active").stdout == "None\n"
    attach = "import torch, rankprune\n" + TRAIN.partition("before =")[0] + HELPERS
    assert python(attach, OMP_WAIT_POLICY="active").stdout == "[]\n"


def test_imported_second_one_sleeping_team_does_it() -> None:
    attach = TRAIN.partition("before =")[0] + "sp.detach(); rankprune.attach(net, optimizer, 'gmp', sparsity=0.9, total_steps=40)\n"
    assert python("import torch, rankprune\n" + attach + HELPERS).stdout == "['rankprune-openmp']\n"
    assert python("import rankprune, torch\n" + attach + HELPERS).stdout == "[]\n"  # the environment was in time


@pytest.mark.long
def test_beside_other_work_the_loops_take_less_of_the_machine() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or "GOMP_SPINCOUNT" not in python("import torch", OMP_DISPLAY_ENV="VERBOSE").stderr:
        pytest.skip("needs two cores and libgomp")
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        pairs = []
        for _ in range(3):
            looping = float(python("import torch, rankprune\n" + TRAIN, GOMP_SPINCOUNT="300000").stdout)
            pairs.append(float(python("import torch, rankprune\n" + TRAIN).stdout) / looping)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert min(pairs) < 0.8
