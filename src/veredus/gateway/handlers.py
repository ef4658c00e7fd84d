"""Actions that need no worker: run in the gateway itself, so many at once and no more."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import PayloadError, TaskTimeout
from veredus.model.failure import drop_older_raises, one_line
from veredus.model.frames import Request
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.request import Origin, error_for, task_id_of
from veredus.model.verdict import End, Outcome
from veredus.wire.results import encode_result
from veredus.worker.context import Context, enter
from veredus.worker.endings import log_with_traceback
from veredus.worker.executors.threads import ThreadPool
from veredus.worker.injection import call_injected, dependencies
from veredus.worker.mux import Mux
from veredus.worker.requests import RequestClient, Requests

logger = logging.getLogger("veredus.gateway")


class _Unreadable(Exception):
    """The body does not fit the action."""


class Handlers:
    """Runs handlers with the same middleware, dependencies and `current()` that a worker gives them."""

    def __init__(self, mux: Mux, requests: Requests, clock: Clock, limit: int) -> None:
        self._mux = mux
        self._requests = requests
        self._clock = clock
        self._limit = limit
        self._threads = ThreadPool(min(limit, 32), lambda: None)
        self.running: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def free(self) -> int:
        return self._limit - len(self.running)

    async def run(self, task: Task[..., Any, Any], origin: Origin, frame: Request, seconds: float) -> None:
        """Run it and write the answer; one that never comes is given by the deadline."""
        key = (origin.session, origin.rid)
        me = asyncio.current_task()
        assert me is not None
        self.running[key] = me
        try:
            client = RequestClient(origin, self._requests.outbox, self._clock, me.get_loop())
            outcome, encoding = await self._outcome(task, origin, frame, seconds, client)
            code, error = error_for(outcome)
            if outcome.error is not None and code == 500:
                text = f"action {task.name} failed: {one_line(outcome.error)}"
                log_with_traceback(logger, logging.WARNING, text, outcome.error)
            await self._requests.respond_surely(
                origin,
                self._clock.monotonic() + seconds,
                body=outcome.result or b"",
                encoding=encoding,
                code=code,
                error=error,
                client=client,
            )
        finally:
            self.running.pop(key, None)

    async def _outcome(
        self, task: Task[..., Any, Any], origin: Origin, frame: Request, seconds: float, client: RequestClient
    ) -> tuple[Outcome, str]:
        message = TaskMessage(
            type=task.name,
            payload=frame.body,
            id=task_id_of(origin.session, origin.rid),
            queue=task.options.queue,
            headers=origin.headers(),
        )
        context = Context(Job(message), origin.deadline_ms / 1000)
        context.serve(client)
        enter(context)
        handler = self._mux.wrap(functools.partial(self._call, task))
        try:
            async with asyncio.timeout(seconds):
                value = await handler(context.job)
            raw = isinstance(value, bytes)
            result = value if raw else None if value is None else encode_result(value, task.name)
        except _Unreadable as exc:
            return Outcome(End.UNREADABLE, error=exc.__cause__), "json"
        except TimeoutError:
            context.cancel()
            return Outcome(End.TIMED_OUT, error=TaskTimeout("ran over its time")), "json"
        except asyncio.CancelledError as exc:
            context.cancel()
            return Outcome(End.CANCELLED, error=exc), "json"
        except Exception as exc:
            drop_older_raises(exc)
            return Outcome(End.FAILED, error=exc), "json"
        return Outcome(End.SUCCEEDED, result=result), "raw" if raw else "json"

    async def _call(self, task: Task[..., Any, Any], job: Job) -> Any:
        try:
            args, kwargs = task.codec.decode(job)
        except PayloadError as exc:
            raise _Unreadable from exc
        if task.run_in == "loop":
            if not dependencies(task.function):
                return await task.function(*args, **kwargs)
            return await call_injected(task.function, lambda given: task.function(*args, **kwargs, **given))
        run = functools.partial(task.function, *args, **kwargs)
        if not dependencies(task.function):
            return await self._threads.submit(run)
        return await call_injected(task.function, lambda given: self._threads.submit(functools.partial(run, **given)))

    def cancel(self, sid: str, rid: int) -> None:
        task = self.running.get((sid, rid))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        self._threads.close()
