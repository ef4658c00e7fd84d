"""Runs coroutines one after another in one asyncio task while none of them waits; one that waits keeps the task.

To make an asyncio task costs more than all else in a short attempt, and a handler that ends without waiting for
anything needs none of its own. One that waits is from then on alone in its task, so that timeouts, cancellation and
`asyncio.current_task()` mean what they always do; and those of its kind get a task each from the beginning. Each
coroutine has its own copy of the context variables.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

Task = asyncio.Task[None]

SLICE = 0.005
"""Seconds after which the event loop gets its turn, though nothing waited."""


class Carried(Protocol):
    """What is run: it is told its task before it begins."""

    task: Task | None

    @property
    def kind(self) -> str: ...


Item = TypeVar("Item", bound=Carried)


class Carrier(Generic[Item]):
    """Starts items in the order in which they came. `run` makes an item's coroutine, which must not raise."""

    def __init__(self, run: Callable[[Item], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._waiting: deque[Item] = deque()
        self._carried = False
        self._kinds_that_wait: set[str] = set()

    def carry(self, item: Item) -> None:
        if item.kind in self._kinds_that_wait:
            item.task = asyncio.get_running_loop().create_task(self._run(item))
            return
        self._waiting.append(item)
        if not self._carried:
            self._carried = True
            self._go_on()

    def _go_on(self) -> None:
        asyncio.get_running_loop().create_task(self._carry())

    def _hand_over(self) -> None:
        """This task goes on with one item alone, or ends: the others do not wait for it."""
        left, self._waiting, self._carried = self._waiting, deque(), False
        for item in left:
            self.carry(item)

    async def _carry(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        now = asyncio.get_running_loop().time
        until = now() + SLICE
        while self._waiting:
            item = self._waiting.popleft()
            item.task = task
            coroutine, run = self._run(item), copy_context().run
            try:
                future = run(coroutine.send, None)
            except StopIteration:
                if task.cancelling() or now() >= until:
                    break
                continue
            except BaseException:
                self._hand_over()  # else nothing would be started here again
                raise
            self._kinds_that_wait.add(item.kind)
            self._hand_over()
            await _stay_with(coroutine, run, future)
            return
        self._hand_over()


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
