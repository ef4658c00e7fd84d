"""An event loop in a thread of its own, for producers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from veredus.process import forks

T = TypeVar("T")


class BlockingPortal:
    """Runs coroutines for synchronous callers. Started at the first call; a forked child gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        forks.register(self)

    def forked(self) -> None:
        """After a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None and self._pid == os.getpid():
            return self._loop
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name="veredus-blocking", daemon=True)
                self._thread.start()
                weakref.finalize(self, _stop, loop).atexit = False  # the thread ends with the app
                self._loop, self._pid = loop, os.getpid()
            return self._loop

    def close(self) -> None:
        """Stop the loop and its thread, and cancel what still runs there. The next call starts them again."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            if loop is None or thread is None or self._pid != os.getpid():
                return
            _stop(loop)
            thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
