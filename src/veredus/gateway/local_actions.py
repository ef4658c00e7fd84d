"""LocalActions: runs actions with where="gateway" in the gateway's process, up to a limit."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import TaskTimeout
from veredus.handlers.calling import UnreadablePayload, call_in_thread, call_on_loop
from veredus.handlers.context import Context, enter
from veredus.handlers.executors.threads import ThreadPool
from veredus.handlers.failure_log import log_with_traceback
from veredus.handlers.mux import Mux
from veredus.handlers.request_answers import RequestAnswers, RequestClient
from veredus.model.failure import drop_older_raises, one_line
from veredus.model.frames import Request
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.request import Origin, error_for, task_id_of
from veredus.model.verdict import End, Outcome
from veredus.wire.results import encode_result

logger = logging.getLogger("veredus.gateway")

ANSWERING = 5.0
"""Seconds for which an answer is tried at least: a deadline may be shorter than it takes to notice that a connection is
dead."""


class LocalActions:
    """Runs handlers with the same middleware, dependencies and `current()` as a worker."""

    def __init__(self, mux: Mux, answers: RequestAnswers, clock: Clock, limit: int) -> None:
        self._mux = mux
        self._answers = answers
        self._clock = clock
        self._limit = limit
        self._threads = ThreadPool(min(limit, 32), lambda: None)
        self.running: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def free(self) -> int:
        return self._limit - len(self.running)

    async def run(self, task: Task[..., Any, Any], origin: Origin, frame: Request, seconds: float) -> None:
        """Run the action and store its response. If there is none, the deadline answers the request."""
        key = (origin.session, origin.rid)
        me = asyncio.current_task()
        if me is None:
            raise RuntimeError("run() needs a running asyncio task")
        self.running[key] = me
        try:
            client = RequestClient(origin, self._answers.outbox, self._clock, me.get_loop())
            outcome, encoding = await self._outcome(task, origin, frame, seconds, client)
            code, error = error_for(outcome)
            if outcome.error is not None and code == 500:
                text = f"action {task.name} failed: {one_line(outcome.error)}"
                log_with_traceback(logger, logging.WARNING, text, outcome.error)
            await self._answers.respond_surely(
                origin,
                self._clock.monotonic() + max(seconds, ANSWERING),
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
        except UnreadablePayload as exc:
            return Outcome(End.UNREADABLE, error=exc.__cause__), "json"
        except TimeoutError:
            context.cancel()
            return Outcome(End.TIMED_OUT, error=TaskTimeout("exceeded its deadline")), "json"
        except asyncio.CancelledError as exc:
            context.cancel()
            return Outcome(End.CANCELLED, error=exc), "json"
        except GeneratorExit:  # this coroutine is being thrown away
            raise
        except BaseException as exc:  # a user's function may raise anything, SystemExit too
            drop_older_raises(exc)
            return Outcome(End.FAILED, error=exc), "json"
        return Outcome(End.SUCCEEDED, result=result), "raw" if raw else "json"

    async def _call(self, task: Task[..., Any, Any], job: Job) -> Any:
        return await (call_on_loop(task, job) if task.run_in == "loop" else call_in_thread(task, self._threads, job))

    def cancel(self, sid: str, rid: int) -> None:
        task = self.running.get((sid, rid))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        self._threads.close()
