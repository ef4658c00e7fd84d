"""Concurrent writers of one process share a round trip: what comes while one is under way leaves together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_ITEMS = 500
"""More in one script would hold up everybody else on the server."""
MAX_IN_FLIGHT = 2
"""One on its way while the next is being filled."""


class Coalescer(Generic[Item, Result]):
    """Collects items and writes them in batches; each caller gets the result of its own item."""

    def __init__(self, write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._in_flight: set[asyncio.Task[None]] = set()
        self._scheduled = False

    def add(self, item: Item) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if not self._scheduled and len(self._in_flight) < MAX_IN_FLIGHT:
            self._scheduled = True
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            batch, self._waiting = self._waiting[:MAX_ITEMS], self._waiting[MAX_ITEMS:]
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._in_flight.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._flush()

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
            answered = list(zip(batch, results, strict=True))
        except BaseException as exc:
            for _, future in batch:
                if not future.done():
                    future.set_exception(
                        exc if isinstance(exc, Exception) else RuntimeError("the writer was cancelled")
                    )
                    future.exception()
            if not isinstance(exc, Exception):
                raise
            return
        for (_, future), result in answered:
            if not future.done():
                future.set_result(result)
