"""Our backend in the clothes of the two that Django's own tests are written for: one keeps, one runs at once."""

from __future__ import annotations

import contextvars
import copy
import functools
from typing import Any

from asgiref.sync import sync_to_async

from veredus.contrib.django import VeredusBackend
from veredus.testing import BlockingRehearsal

QUEUES = {f"{name}{band}": 1 for name in ("default", "queue-1") for band in ("", ":high", ":low")}


@functools.cache
def rehearsal() -> BlockingRehearsal:
    """One for all tests of the process, as Django's test runner knows no fixtures."""
    return VeredusBackend("default", {}).app.test(queues=QUEUES).__enter__()


class DummyBackend(VeredusBackend):
    """Enqueues and runs nothing."""

    results: list[Any] = []  # noqa: RUF012 - shared by the backends of all threads, as the tests expect

    def _prepare(self, task: Any, args: Any, kwargs: Any) -> Any:
        rehearsal()
        call, result = super()._prepare(task, args, kwargs)
        self.results.append(result)
        return call, copy.deepcopy(result)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def get_result(self, result_id: str) -> Any:
        rehearsal()
        return super().get_result(result_id)

    def clear(self) -> None:
        self.results.clear()


class ImmediateBackend(VeredusBackend):
    """Enqueues, has it run by a worker, and reads the result."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        queue = rehearsal()
        self.options = {"max_retry": 0}
        try:
            result = super().enqueue(task, args, kwargs)
        finally:
            self.options = {}
        contextvars.Context().run(queue.drain)  # a worker has a context of its own
        result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return await sync_to_async(self.enqueue)(task, args, kwargs)
