"""File locks that the kernel releases when their last holder dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from veredus.embedded import waiting

if sys.platform != "win32":
    import fcntl


class Busy(Exception):
    """Another process holds the lock, and did not release it before the timeout."""


class Lock:
    """A lock that this process holds; made by `take`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def release(self) -> None:
        """Release it at once, also for a child that was forked since and shares the descriptor."""
        if self.descriptor >= 0:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            self.leave_to_child()

    def leave_to_child(self) -> None:
        """Close only our descriptor: from now on the lock is held as long as the child that inherited it lives."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def take(path: Path, timeout: float) -> Lock:
    """Take the exclusive lock, or raise `Busy` after the timeout."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        taken = waiting.until(lambda: _try(descriptor, fcntl.LOCK_EX), timeout)
    except BaseException:
        os.close(descriptor)
        raise
    if not taken:
        os.close(descriptor)
        raise Busy(str(path))
    return Lock(descriptor)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock. Creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    # A shared lock, so that two simultaneous checks do not take each other for the holder.
    with Lock(descriptor):
        return not _try(descriptor, fcntl.LOCK_SH)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
