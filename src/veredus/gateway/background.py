"""Background coroutines: BackgroundTasks for a part of the gateway, ClientTasks for one client."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

logger = logging.getLogger("veredus.gateway")

Work = Callable[[], Coroutine[Any, Any, None]]


AT_ONCE = 8
"""Coroutines of one client that run concurrently."""


class ClientTasks:
    """Runs a few coroutines of one client at a time and queues the rest, so that one client cannot fill a turn of the
    loop. Coroutines of the same subject run one after the other."""

    __slots__ = ("_ready", "_running", "_waiting")

    def __init__(self) -> None:
        self._running = 0
        self._waiting: dict[Hashable, deque[Work]] = {}
        self._ready: deque[Hashable] = deque()
        """Subjects that have queued work and no running work."""

    def start(self, background: BackgroundTasks, subject: Hashable, work: Work) -> None:
        if subject in self._waiting:
            self._waiting[subject].append(work)
            return
        self._waiting[subject] = deque((work,))
        self._ready.append(subject)
        if self._running < AT_ONCE:
            self._running += 1
            background.start(self._run(background))

    def drop(self) -> None:
        """Discard the queued work of a client that left."""
        self._ready.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    async def _run(self, background: BackgroundTasks) -> None:
        try:
            while self._ready:
                await self._run_first(self._ready.popleft())
                await asyncio.sleep(0)
        except Exception:
            if self._ready:
                self._running += 1
                background.start(self._run(background))
            raise
        finally:
            self._running -= 1

    async def _run_first(self, subject: Hashable) -> None:
        waiting = self._waiting[subject]
        try:
            await waiting.popleft()()
        finally:
            if waiting:
                self._ready.appendleft(subject)  # else all groups are joined before one is left
            else:
                del self._waiting[subject]


class BackgroundTasks:
    """Holds coroutines until they end, logs their failures, and stops them together."""

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
        """Wait this long for the running coroutines, then cancel them."""
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)
