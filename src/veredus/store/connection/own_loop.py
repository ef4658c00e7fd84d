"""An event loop for one synchronous caller at a time, which mostly does not run.

The coroutines and connections are the same as everywhere, and so are their rules: patience, idle check, numbered
calls, silence, Cluster. Only the usual wait, for the next reply of a healthy connection, is done without the
loop: send, wait for the socket, read. That costs a fraction of running the loop. It runs for everything else.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from veredus.store.connection.connection import Connection

T = TypeVar("T")

BY_HAND = 0.1
"""Seconds of waiting for a reply, after which the loop goes on: it has the timers that notice a dead connection."""
CATCH_UP = 1.0
"""Seconds after which the loop runs before a call in any case, for its timers."""
JUST_NOW = 0.002
"""Within this many seconds of the last call, the sockets are not polled before the next one."""


class OwnLoop:
    """Not for several threads at once. After an exception that is no Exception, such as KeyboardInterrupt, it can only
    be closed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._ran_at = self._used_at = time.monotonic()

    def run(self, coroutine: Coroutine[Any, Any, T], at_hand: Callable[[], Connection | None]) -> T:
        """The result of the coroutine. `at_hand`: the connection to which it is about to write, if that can be used."""
        try:
            self._catch_up()
            connection = at_hand()
            if connection is not None:
                asyncio._set_running_loop(self._loop)
                waiting = coroutine.send(None)
                while self._has_come(waiting, connection):
                    waiting = coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        except BaseException:
            coroutine.close()  # interrupted: it lets go of what it holds
            raise
        finally:
            asyncio._set_running_loop(None)
            self._used_at = time.monotonic()
        return self._run_loop(coroutine if connection is None else _rest(coroutine, waiting))

    def _has_come(self, waiting: Any, connection: Connection) -> bool:
        """Wait for a reply. False if the loop must go on: for anything else, an error, and when it takes long."""
        while connection.is_next(waiting):
            if not self._selector.select(BY_HAND) or not connection.read_here():
                return False
        return isinstance(waiting, asyncio.Future) and waiting.done() and waiting.exception() is None

    def _catch_up(self) -> None:
        """What has happened since the last call: the server has closed a connection, or a timer is due."""
        now = time.monotonic()
        if now - self._ran_at > CATCH_UP or (now - self._used_at > JUST_NOW and self._selector.select(0)):
            self._run_loop(_some_turns())

    def _run_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            self._ran_at = self._used_at = time.monotonic()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run this, then cancel what still runs and close the loop."""
        running = asyncio._get_running_loop()  # the caller that drops the last reference may have one
        asyncio._set_running_loop(None)
        try:
            self._loop.run_until_complete(last)
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks))
        finally:
            self._loop.close()
            asyncio._set_running_loop(running)


async def _some_turns() -> None:
    """What a first turn of the loop reads may call for a second one."""
    for _ in range(3):
        await asyncio.sleep(0)


async def _rest(coroutine: Coroutine[Any, Any, T], waiting: Any) -> T:
    """The rest of a coroutine that waits for something already."""
    result: T = await _Rest(coroutine, waiting)
    return result


class _Rest:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], waiting: Any) -> None:
        self._coroutine, self._waiting = coroutine, waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            problem: BaseException | None = None
            try:
                yield self._waiting
            except BaseException as exc:  # cancelled, or closed
                problem = exc
            try:
                if problem is None:
                    self._waiting = self._coroutine.send(None)
                else:
                    self._waiting = self._coroutine.throw(problem)
            except StopIteration as end:
                return end.value
