"""A process that ends when its parent does, also when the parent is killed with -9."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Ask the system for this signal when the parent dies (Linux only; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
