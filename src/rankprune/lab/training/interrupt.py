"""Turns SIGINT and SIGTERM into a flag that the training loop checks between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Within the block the first signal only sets a flag; a second one has its usual effect.

    Args:
        under_torchrun: Later signals only set the flag as well: torchrun forwards signals that the terminal has already
            sent, and kills slow processes itself.
    """

    signum: int | None = None

    def __init__(self, under_torchrun: bool = False) -> None:
        self._under_torchrun = under_torchrun

    def __enter__(self) -> Interrupt:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            self._before = {number: signal.signal(number, self._remember) for number in _WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if not self._under_torchrun:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
