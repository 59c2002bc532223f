"""Signals as a terminal sends them."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """For a command's `preexec_fn`: what a background job starts ignores Ctrl-C otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
