"""Makes torch's OpenMP threads spin only briefly at barriers, then sleep.

By default libgomp spins 300,000 times at each barrier. As soon as anything else runs on the machine, a spinning thread
takes the core from the thread it waits for, and training costs several times the CPU time. Importing this module does
not import torch.
"""

from __future__ import annotations

import os
import sys
import threading

_torch_came_first = False  # torch was imported before this package, and has read the environment already
_helper: threading.Thread | None = None


def limit_spinning() -> None:
    """Ask for a short spin through the environment, which libgomp reads once, when torch is loaded.

    Called when the package is imported. Settings of the user's own are kept.
    """
    global _torch_came_first
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    _torch_came_first = "torch" in sys.modules
    if not _torch_came_first:
        os.environ["GOMP_SPINCOUNT"] = "1000"


def limit_spinning_late() -> None:
    """The same for the case that torch was imported first; called before training starts.

    With more OpenMP threads than cores, libgomp spins 1,000 times instead of 300,000 (documented under GOMP_SPINCOUNT).
    A thread that has used OpenMP keeps its team of threads, so one helper thread that then sleeps forever is enough.
    """
    global _helper
    import torch

    if _torch_came_first and _helper is None and torch.get_num_threads() > 1:
        ready = threading.Event()

        def hold_a_team() -> None:
            torch.ones(1 << 18).add_(1.0)
            ready.set()
            threading.Event().wait()

        _helper = threading.Thread(target=hold_a_team, name="rankprune-openmp", daemon=True)
        _helper.start()
        ready.wait()
