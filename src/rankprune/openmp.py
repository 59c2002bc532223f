"""How torch's OpenMP threads wait for one another: asleep after a short loop, not in a long one.

By default libgomp loops 300,000 times at each barrier. As soon as anything else runs on the machine, such a loop takes
the core from the thread it waits for: training then costs several times the CPU time. This file imports no torch.
"""

from __future__ import annotations

import os
import sys
import threading

_late = False  # torch was there before us, so the environment came too late
_helper: threading.Thread | None = None


def wait_asleep() -> None:
    """Ask for short loops through the environment, which libgomp reads once, when torch is loaded.

    Called when the package is imported. A choice of the user's own stays.
    """
    global _late
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    _late = "torch" in sys.modules
    if not _late:
        os.environ["GOMP_SPINCOUNT"] = "1000"


def wait_asleep_late() -> None:
    """The same where torch was imported first: called before work that lasts.

    Where there are more OpenMP threads than cores, libgomp loops 1,000 times instead of 300,000 (documented under
    GOMP_SPINCOUNT). A thread that once used OpenMP keeps its team: one that sleeps ever after makes it so.
    """
    global _helper
    import torch

    if _late and _helper is None and torch.get_num_threads() > 1:
        ready = threading.Event()

        def hold_a_team() -> None:
            torch.ones(1 << 18).add_(1.0)
            ready.set()
            threading.Event().wait()

        _helper = threading.Thread(target=hold_a_team, name="rankprune-openmp", daemon=True)
        _helper.start()
        ready.wait()
