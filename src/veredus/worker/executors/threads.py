"""Synchronous handlers run here: threads made on demand, that never keep the process from ending."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Job = tuple[Callable[[], Any], contextvars.Context, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ThreadPool:
    """Daemon threads: one that hangs is left behind when the worker ends, as its task has been given back."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()
        self.running = 0

    @property
    def free(self) -> int:
        return self._size - self.running

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run it in a thread, in a copy of this context. The future outlives a cancelled waiter."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.running += 1
        with self._lock:
            if not self._idle and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name=f"veredus-{self._threads}", daemon=True).start()
        self._jobs.put((function, contextvars.copy_context(), loop, future))
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
            if job is None:
                return
            function, context, loop, future = job
            try:
                result, error = context.run(function), None
            except BaseException as exc:
                result, error = None, exc
            try:
                loop.call_soon_threadsafe(self._deliver, future, result, error)
            except RuntimeError:
                return  # the loop has ended

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.running -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the handler raised StopIteration({error.value!r})"))
        else:
            future.set_exception(error)

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)
