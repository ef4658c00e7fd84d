"""Concurrent writers of one process share a round trip: what comes while one is under way leaves together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_ITEMS = 500
"""More in one script would hold up everybody else on the server."""
MAX_BYTES = 4 * 1024 * 1024
"""The same for large items."""
MAX_IN_FLIGHT = 2
"""One on its way while the next is being filled."""


def in_batches(items: Sequence[Item], size_of: Callable[[Item], int], most: int = MAX_ITEMS) -> Iterator[list[Item]]:
    """Cut into batches that one script call can take, in order: neither too many items nor too many bytes."""
    batch: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) >= most or total + size > MAX_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


class Coalescer(Generic[Item, Result]):
    """Collects items and writes them in batches; each caller gets the result of its own item."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        size_of: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        self._write = write
        self._size_of = size_of
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
            batch = next(in_batches(self._waiting, lambda row: self._size_of(row[0])))
            self._waiting = self._waiting[len(batch) :]
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
