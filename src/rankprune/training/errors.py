"""What a run raises; the message is one sentence for the user."""

from __future__ import annotations

import signal


class RunError(RuntimeError):
    """A run that could not go on. `said`: another process says it, so that this one need not."""

    exit_code = 1

    def __init__(self, message: str, said: bool = False) -> None:
        super().__init__(message)
        self.said = said


class Unfinished(RunError):
    """The folder holds a run that was begun, and nobody said to resume it."""

    exit_code = 2


class NanLoss(RunError):
    """The loss is not a finite number."""

    exit_code = 3


class OffTarget(RunError):
    """The run is over and the sparsity is not the one asked for."""

    exit_code = 4


class LostRank(RunError):
    """Another process of the run does not answer."""

    exit_code = 5


class MasksDiffer(RunError):
    """The processes of the run do not agree on the masks."""

    exit_code = 6


class StepFailed(RunError):
    """A batch or a step raised; the run was put back to the last whole step, and saved where that was possible."""

    def __init__(self, message: str, exit_code: int, said: bool = False) -> None:
        super().__init__(message, said)
        self.exit_code = exit_code


class Elsewhere(StepFailed):
    """The main process failed in what it alone does, and says so itself."""


class Interrupted(RunError):
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, message: str, signum: int, said: bool = False) -> None:
        super().__init__(message, said)
        self.signum = signal.Signals(signum)
        self.exit_code = 128 + signum  # as shells count
