"""The entry point of `veredus`. It handles signals before the command's modules are imported."""

from __future__ import annotations

import os
import signal
import sys

STOPPABLE = ("worker", "gateway", "scheduler")
"""Commands that exit with 0 on a signal. Importing them takes tenths of a second, on a busy machine seconds."""


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in STOPPABLE:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from veredus.cli.main import main as run

    run()


def loaded() -> None:
    """Restore the default signal handlers, because the command is not one of STOPPABLE."""
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    """Exit at once: nothing has been opened yet."""
    os._exit(0)
