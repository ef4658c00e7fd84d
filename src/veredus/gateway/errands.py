"""Coroutines that run by themselves: held until they end, their failures told, stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger("veredus.gateway")

Errand = Callable[[], Coroutine[Any, Any, None]]


AT_ONCE = 8
"""Errands of one client that run at the same time."""


class Turns:
    """What one client asks for runs a few at a time, the rest waits in its order: however much that is, one turn of the
    loop has little of it to do."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running = 0
        self._waiting: deque[Errand] = deque()

    def start(self, errands: Errands, errand: Errand) -> None:
        self._waiting.append(errand)
        if self._running < AT_ONCE:
            self._running += 1
            errands.start(self._run(errands))

    def drop(self) -> None:
        """The client is gone: what waits is not begun."""
        self._waiting.clear()

    async def _run(self, errands: Errands) -> None:
        try:
            while self._waiting:
                await self._waiting.popleft()()
                await asyncio.sleep(0)
        except Exception:
            if self._waiting:
                self._running += 1
                errands.start(self._run(errands))
            raise
        finally:
            self._running -= 1


class Errands:
    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", self._name, exc_info=task.exception())

    async def close(self, seconds: float) -> None:
        """Give what runs so long to end, then end it."""
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)
