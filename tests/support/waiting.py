"""How tests wait: for an event, within a bound that a busy machine keeps; or for a time that proves an absence."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

Condition = Callable[..., Any]
"""Called without arguments; the dots are for a lambda in a loop, which binds the loop's variable by a default."""

PATIENCE = 30.0
"""Seconds after which a test gives up. Long on purpose: a shorter bound fails on a busy machine and finds no more."""

_BETWEEN_LOOKS = 0.01


async def until(condition: Condition, *, seconds: float = PATIENCE, what: str = "the condition") -> Any:
    """Look again and again until the condition, plain or awaitable, is true; its value. Fails after so many seconds."""
    give_up = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come within {seconds:g} s")
        await asyncio.sleep(_BETWEEN_LOOKS)


def until_sync(condition: Condition, *, seconds: float = PATIENCE, what: str = "the condition") -> Any:
    """The same without an event loop."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come within {seconds:g} s")
        time.sleep(_BETWEEN_LOOKS)
    return value


async def pause(seconds: float, *, proves: str) -> None:
    """Let time pass to show that something does *not* happen. `proves` says what. For all else there is `until`."""
    assert proves
    await asyncio.sleep(seconds)


def pause_sync(seconds: float, *, proves: str) -> None:
    """The same without an event loop; in a handler on the loop, it blocks the loop."""
    assert proves
    time.sleep(seconds)


async def forever() -> None:
    """A handler that ends only when it is cancelled."""
    await asyncio.Event().wait()
