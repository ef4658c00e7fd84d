"""Coroutines that run by themselves: held until they end, their failures told, stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("veredus.gateway")


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
