"""Exceptions of a training run. Each message is one sentence for the user, and each class has its exit code."""

from __future__ import annotations

import signal


class RunError(RuntimeError):
    """A run that could not continue.

    Args:
        message: One sentence for the user.
        already_reported: Another process prints the message, so this one stays silent.
    """

    exit_code = 1

    def __init__(self, message: str, already_reported: bool = False) -> None:
        super().__init__(message)
        self.already_reported = already_reported


class Unfinished(RunError):
    """The folder holds a run that was started but not finished, and resuming was not requested."""

    exit_code = 2


class NanLoss(RunError):
    """The loss is not a finite number."""

    exit_code = 3


class OffTarget(RunError):
    """The run ended at a sparsity other than its target."""

    exit_code = 4


class LostRank(RunError):
    """Another process of the run does not respond."""

    exit_code = 5


class MasksDiffer(RunError):
    """The processes of the run hold different masks."""

    exit_code = 6


class StepFailed(RunError):
    """A batch or a step raised. The run was restored to the last complete step and, where possible, saved.

    Args:
        message: One sentence for the user.
        exit_code: Exit code of the command; that of the original error where it has one.
        already_reported: Another process prints the message, so this one stays silent.
    """

    def __init__(self, message: str, exit_code: int, already_reported: bool = False) -> None:
        super().__init__(message, already_reported)
        self.exit_code = exit_code


class MainProcessFailed(StepFailed):
    """Raised on the other processes when the main process failed in work that it alone does."""


class Interrupted(RunError):
    """A signal asked the run to stop. The run has been saved.

    Args:
        message: One sentence for the user.
        signum: The signal that arrived.
        already_reported: Another process prints the message, so this one stays silent.
    """

    def __init__(self, message: str, signum: int, already_reported: bool = False) -> None:
        super().__init__(message, already_reported)
        self.signum = signal.Signals(signum)
        self.exit_code = 128 + signum  # the convention of shells
