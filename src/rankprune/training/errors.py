"""What a run raises; the message is one sentence for the user."""

from __future__ import annotations

import signal


class RunError(RuntimeError):
    """A run that could not go on."""

    exit_code = 1


class Unfinished(RunError):
    """The folder holds a run that was begun, and nobody said to resume it."""

    exit_code = 2


class NanLoss(RunError):
    """The loss is not a finite number."""

    exit_code = 3


class OffTarget(RunError):
    """The run is over and the sparsity is not the one asked for."""

    exit_code = 4


class Interrupted(RunError):
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signal.Signals(signum)
        self.exit_code = 128 + signum  # as shells count
