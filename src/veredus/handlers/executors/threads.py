"""ThreadPool: runs synchronous handlers in threads that are started on demand and do not block the exit."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from veredus.handlers.executors.slots import Slots
from veredus.process import forks

_Job = tuple[Callable[[], Any], contextvars.Context, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ThreadPool:
    """Daemon threads: one that hangs is left behind when the worker ends."""

    def __init__(self, size: int, on_free: Callable[[], None]) -> None:
        self._size = size
        self._slots = Slots(size)
        self._on_free = on_free
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._running = 0
        self._abandoned = 0
        """Threads that still run although their attempt has ended."""

    def free(self, busy: int) -> int:
        """How many more handlers can start, when `busy` tasks for threads are in flight."""
        return self._size - busy - self._abandoned

    @asynccontextmanager
    async def slot(self, task: object) -> AsyncIterator[None]:
        """Wait until a thread is free."""
        await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread, with a copy of the context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(self._waiter_ended)
        self._running += 1
        if self._threads < min(self._size, self._running):
            self._threads += 1
            threading.Thread(target=self._work, name=f"veredus-{self._threads}", daemon=True).start()
        self._jobs.put((function, contextvars.copy_context(), loop, future))
        return future

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            function, context, loop, future = job
            pid = os.getpid()
            try:
                result, error = context.run(function), None
            except BaseException as exc:  # a handler may raise anything
                result, error = None, exc
            if os.getpid() != pid:
                forks.end(error)
            try:
                loop.call_soon_threadsafe(self._deliver, future, result, error)
            except RuntimeError:
                return  # the loop has ended

    def _waiter_ended(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._abandoned += 1
            self._slots.occupy()

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running -= 1
        if future.done():
            self._abandoned -= 1
            self._slots.release()
            self._on_free()
        elif error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration | GeneratorExit):  # a future must not end with these
            raised = RuntimeError(f"the handler raised {error!r}")
            raised.__cause__ = error
            future.set_exception(raised)
        else:
            future.set_exception(error)

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)
