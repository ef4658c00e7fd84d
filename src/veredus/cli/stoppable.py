"""Commands that run until they are stopped. They handle signals before the app is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import click

from veredus.process.signals import StopWanted, stop_signals

P = ParamSpec("P")


def stoppable(command: Callable[P, int]) -> Callable[P, int]:
    """Make SIGTERM and SIGINT exit with 0 at any time. After the command has ended, they cannot change its exit
    code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        is_whole_process = bool(click.get_current_context().find_root().obj)
        try:
            with stop_signals(interrupts=True, restores=not is_whole_process) as signals:
                code = command(*args, **kwargs)
                signals.end_with(code)
                return code
        except StopWanted:
            return 0

    return run
