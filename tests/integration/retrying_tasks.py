"""Tasks that say which errors lead to another attempt, on the loop, in threads and in processes."""

from __future__ import annotations

import asyncio
from typing import Any

from veredus import App, Retry, RevokeTask, SkipRetry

app = App("redis://127.0.0.1:1")  # every test points it at its own server


class Busy(Exception):
    """Worth another attempt."""


class Declined(Busy):
    """Not worth one, although its base class is."""


class Odd(Busy):
    """Cannot be rebuilt in another process from its text."""

    def __str__(self) -> str:
        return f"odd {id(self)}"


def _raise(deed: str) -> None:
    raises: dict[str, Any] = {
        "busy": Busy("later"),
        "declined": Declined("no"),
        "odd": Odd(),
        "other": KeyError("x"),
        "skip": SkipRetry(),
        "revoke": RevokeTask(),
        "counted": Retry("not ready", after=30),
        "free": Retry("not ready", after=40, counts=False),
        "usual": Retry(),
        "alone": ExceptionGroup("outer", [ExceptionGroup("inner", [Retry("not ready", after=40, counts=False)])]),
        "cancelled": BaseExceptionGroup("all", [asyncio.CancelledError(), Retry(after=30)]),
        "beside_busy": ExceptionGroup("two", [Retry(after=30), Busy("later")]),
        "beside_other": ExceptionGroup("two", [Retry(after=30), KeyError("x")]),
        "beside_skip": ExceptionGroup("two", [Retry(after=30), SkipRetry()]),
        "twice": ExceptionGroup("two", [Retry(after=30), Retry(after=40)]),
    }
    raise raises[deed]


_SETTINGS: dict[str, Any] = {"max_retry": 1, "retry_delay": 7, "retry_on": Busy, "no_retry_on": [Declined]}


@app.task(name="loop", **_SETTINGS)
async def on_loop(deed: str) -> None:
    _raise(deed)


@app.task(name="thread", **_SETTINGS)
def in_thread(deed: str) -> None:
    _raise(deed)


@app.task(name="process", run_in="process", **_SETTINGS)
def in_process(deed: str) -> None:
    _raise(deed)


TASKS: dict[str, Any] = {"loop": on_loop, "thread": in_thread, "process": in_process}
