"""Finds the `Retry` in a group of errors: `asyncio.TaskGroup` raises nothing but groups."""

from __future__ import annotations

import asyncio

from veredus.errors import Retry


def only_retry(group: BaseException) -> Retry | None:
    """The one `Retry` of a group that has no other error but cancellations. Any other error decides alone."""
    found: list[Retry] = []
    waiting = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        elif isinstance(error, Retry):
            found.append(error)
        elif not isinstance(error, asyncio.CancelledError):
            return None
    return found[0] if len(found) == 1 else None
