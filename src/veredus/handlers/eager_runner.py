"""EagerRunner: runs coroutines one after another in one asyncio task, as long as none of them waits.

Creating an asyncio task is the most expensive step of a short attempt, and a handler that never waits does not need its
own. A coroutine that waits keeps the task for itself from then on, so that timeouts, cancellation and
`asyncio.current_task()` work as usual; later coroutines of its kind get their own task from the start. Each coroutine
has its own copy of the context variables.
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
"""Seconds after which the event loop runs other tasks, even if no coroutine waited."""


class EagerItem(Protocol):
    """An item to run. Its `task` is set before it begins."""

    task: Task | None

    @property
    def kind(self) -> str: ...


Item = TypeVar("Item", bound=EagerItem)


class EagerRunner(Generic[Item]):
    """Starts items in order. `run` makes the coroutine of an item, which must not raise."""

    def __init__(self, run: Callable[[Item], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._waiting: deque[Item] = deque()
        self._is_running = False
        self._kinds_that_wait: set[str] = set()

    def start(self, item: Item) -> None:
        if item.kind in self._kinds_that_wait:
            item.task = asyncio.get_running_loop().create_task(self._run(item))
            return
        self._waiting.append(item)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().create_task(self._run_all())

    def _hand_over(self) -> None:
        """This asyncio task goes on with one item or ends: start the other items elsewhere."""
        left, self._waiting, self._is_running = self._waiting, deque(), False
        for item in left:
            self.start(item)

    async def _run_all(self) -> None:
        task, now = asyncio.current_task(), asyncio.get_running_loop().time
        assert task is not None  # for mypy: this coroutine runs in its own task
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
                self._hand_over()  # otherwise no further item would be started
                raise
            self._kinds_that_wait.add(item.kind)
            self._hand_over()
            await _stay_with(coroutine, run, future)
            return
        self._hand_over()


@types.coroutine
def _stay_with(coroutine: Coroutine[Any, Any, None], run: Callable[..., Any], future: Any) -> Generator[Any, Any, None]:
    """Like `await coroutine`, for a coroutine that has already begun, in its own context."""
    while True:
        step: Callable[[Any], Any]
        try:
            value = yield future
            step = coroutine.send
        except BaseException as exc:  # whatever is thrown in here belongs to the handler, also its traceback
            value = exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)
            step = coroutine.throw
        try:
            future = run(step, value)
        except StopIteration:
            return
