"""Runs coroutines one after another in one asyncio task while none of them waits; one that waits keeps the task.

To make an asyncio task costs more than all else in a short attempt, and a handler that ends without waiting for
anything needs none of its own. One that waits is from then on alone in its task, so that timeouts, cancellation and
`asyncio.current_task()` mean what they always do. Each coroutine has its own copy of the context variables.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Task = asyncio.Task[None]

SLICE = 0.005
"""Seconds after which the event loop gets its turn, though nothing waited."""


class Carrier(Generic[Item]):
    """Starts items in the order in which they came. `begin` makes an item's coroutine, which must not raise."""

    def __init__(self, begin: Callable[[Item, Task], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin
        self._waiting: deque[Item] = deque()
        self._carried = False

    def carry(self, item: Item) -> None:
        self._waiting.append(item)
        if not self._carried:
            self._carried = True
            self._go_on()

    def _go_on(self) -> None:
        asyncio.get_running_loop().create_task(self._carry())

    async def _carry(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        now = asyncio.get_running_loop().time
        until = now() + SLICE
        while self._waiting:
            coroutine = self._begin(self._waiting.popleft(), task)
            run, ended = copy_context().run, False
            try:
                future = run(coroutine.send, None)
            except StopIteration:
                if not task.cancelling() and now() < until:
                    continue
                ended = True
            if self._waiting:
                self._go_on()
            else:
                self._carried = False
            if not ended:
                await _stay_with(coroutine, run, future)
            return
        self._carried = False


@types.coroutine
def _stay_with(coroutine: Coroutine[Any, Any, None], run: Callable[..., Any], future: Any) -> Generator[Any, Any, None]:
    """What `await coroutine` does, for one that has already begun, and in its own context."""
    while True:
        step: Callable[[Any], Any]
        try:
            value = yield future
            step = coroutine.send
        except BaseException as exc:
            value = exc
            step = coroutine.throw
        try:
            future = run(step, value)
        except StopIteration:
            return
