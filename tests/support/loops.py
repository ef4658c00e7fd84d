"""What a test leaves in its event loop: tasks of ours that still run, timers of ours that would still fire."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import veredus

SOURCE = str(Path(veredus.__file__).parent)
PATIENCE = 10.0
"""Seconds in which what was told to end has to be gone."""


class LeftInTheLoop(AssertionError):
    """Something goes on after whoever started it was closed."""


def ours(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Tasks and timers of the package, one line each."""
    current = asyncio.current_task(loop)
    tasks = [task for task in asyncio.all_tasks(loop) if task is not current and _is_ours(_code_of_task(task))]
    timers = [timer for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
    found = [f"task {_place(_code_of_task(task))}" for task in tasks]
    found += [f"timer {_place(code)}" for timer in timers if _is_ours(code := _code_of(timer._callback))]
    return sorted(found)


async def nothing_left() -> None:
    """Wait until nothing of ours is left in this loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while (left := ours(loop)) and loop.time() < end:
        await asyncio.sleep(0.01)
    if left:
        raise LeftInTheLoop("; ".join(left))


def _code_of_task(task: asyncio.Task[Any]) -> CodeType | None:
    return getattr(task.get_coro(), "cr_code", None)


def _code_of(callback: Callable[..., Any] | None) -> CodeType | None:
    while isinstance(callback, functools.partial):
        callback = callback.func
    return getattr(getattr(callback, "__func__", callback), "__code__", None)


def _is_ours(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(SOURCE)


def _place(code: CodeType | None) -> str:
    return "?" if code is None else f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"
