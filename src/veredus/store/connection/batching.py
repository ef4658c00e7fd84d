"""Concurrent writers of one process share round trips: what arrives during one round trip is sent with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from veredus.process import forks

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_ITEMS = 500
"""More items in one script would delay everybody else on the server."""
MAX_BYTES = 4 * 1024 * 1024
"""The same limit for large items, in bytes."""
MAX_IN_FLIGHT = 2
"""One batch is sent while the next one fills."""


def in_batches(
    items: Sequence[Item], size_of: Callable[[Item], int], most: int = MAX_ITEMS, most_bytes: int = MAX_BYTES
) -> Iterator[list[Item]]:
    """Split into batches for one script call each, in order: neither too many items nor too many bytes."""
    batch: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) >= most or total + size > most_bytes):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


class Coalescer(Generic[Item, Result]):
    """Writes items in batches. Each caller gets the result of its own item. The first caller does not wait."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        size_of: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        self._write = write
        self._size_of = size_of
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        forks.register(self)

    def forked(self) -> None:
        """After a fork: batches in flight and waiting items belong to the parent."""
        forks.leak(self._waiting, self._tasks)
        self._waiting, self._in_flight, self._tasks = [], 0, set()

    async def add(self, item: Item) -> Result:
        if self._in_flight < MAX_IN_FLIGHT and not self._waiting:
            self._in_flight += 1
            try:
                return (await self._write([item]))[0]
            finally:
                self._landed()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        return await future

    def _landed(self) -> None:
        """A write has finished: send the items that arrived since."""
        self._in_flight -= 1
        while self._waiting and self._in_flight < MAX_IN_FLIGHT:
            batch = next(in_batches(self._waiting, lambda row: self._size_of(row[0])))
            self._waiting = self._waiting[len(batch) :]
            self._in_flight += 1
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._landed()

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"the writer answered for {len(results)} of {len(batch)} items")
        except BaseException as exc:  # also a cancel: each caller of the batch must hear of it
            for _, future in batch:
                if not future.done():
                    future.set_exception(
                        exc if isinstance(exc, Exception) else RuntimeError("the writer was cancelled")
                    )
                    future.exception()
            if not isinstance(exc, Exception):
                raise
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
