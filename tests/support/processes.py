"""Processes that a test starts: none outlives it, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

GENTLE = 10.0
"""Seconds that a process has after SIGTERM at the end of a test that left it running, before its group is killed."""


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`with running([...]) as process:` starts it in a session of its own; at the end it is gone, with its children."""
    with subprocess.Popen(command, start_new_session=True, text=True, **options) as process:
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """A process in a session of its own, and whatever it has left behind there."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GENTLE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def veredus(*arguments: str) -> list[str]:
    """The command line of `veredus ...`."""
    return [sys.executable, "-m", "veredus", *arguments]
