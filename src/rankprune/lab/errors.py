"""What a run raises; the message is one sentence for the user."""

from __future__ import annotations

import signal


class RunError(RuntimeError):
    """A run that could not go on. `already_reported`: another process prints the message."""

    exit_code = 1

    def __init__(self, message: str, already_reported: bool = False) -> None:
        super().__init__(message)
        self.already_reported = already_reported


class Unfinished(RunError):
    """The folder holds a run that was begun, and nobody already_reported to resume it."""

    exit_code = 2


class NanLoss(RunError):
    """The loss is not a finite number."""

    exit_code = 3


class OffTarget(RunError):
    """The run ended at another sparsity than the target."""

    exit_code = 4


class LostRank(RunError):
    """Another process of the run does not answer."""

    exit_code = 5


class MasksDiffer(RunError):
    """The processes of the run do not agree on the masks."""

    exit_code = 6


class StepFailed(RunError):
    """A batch or a step raised. The run was restored to the last complete step and, where possible, saved."""

    def __init__(self, message: str, exit_code: int, already_reported: bool = False) -> None:
        super().__init__(message, already_reported)
        self.exit_code = exit_code


class MainProcessFailed(StepFailed):
    """Raised on the other processes when the main process failed in work that it alone does."""


class Interrupted(RunError):
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, message: str, signum: int, already_reported: bool = False) -> None:
        super().__init__(message, already_reported)
        self.signum = signal.Signals(signum)
        self.exit_code = 128 + signum  # the convention of shells
