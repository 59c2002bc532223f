"""Ctrl-C and SIGTERM as a wish the loop reads between two steps, not as an exception anywhere."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Within the block, the first signal is only remembered; a second one acts as it always did.

    Not so where torchrun stands above: it passes on what the terminal sent already, and kills who takes too long.
    """

    signum: int | None = None

    def __init__(self, patient: bool = False) -> None:
        self._patient = patient

    def __enter__(self) -> Interrupt:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody set handlers
            self._before = {number: signal.signal(number, self._remember) for number in _WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
