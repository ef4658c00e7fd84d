"""Where the process of the command `veredus` begins: a signal can end it before the command is loaded."""

from __future__ import annotations

import os
import signal
import sys

STOPPABLE = ("worker", "gateway", "scheduler")
"""Commands that a signal ends with 0. Loading them takes some tenths of a second, on a busy machine seconds."""


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in STOPPABLE:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from veredus.cli.main import main as run

    run()


def loaded() -> None:
    """The command is none of those after all: signals do what they do to any other."""
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    """Nothing was opened and nobody can see this process yet."""
    os._exit(0)
