"""Ends a process when its parent ends, even if the parent is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Ask the system to send this signal when the parent dies. Works on Linux only; does nothing elsewhere."""
    if sys.platform != "linux":
        return
    _prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants. Works on Linux only; does nothing elsewhere."""
    if sys.platform == "linux":
        _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)
