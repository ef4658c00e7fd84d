"""Results: how tasks ended, for waiters; progress and early results, from running tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys
from veredus.wire.messages import KEPT_FOR_WAITERS

AWAIT = load("result/await", keys="task", args="channel keep_s")
PROGRESS = load("result/progress", keys="lease", args="queue_prefix task_id owner progress")
WRITE = load("result/write", keys="lease", args="queue_prefix task_id owner result")

GONE = "gone"
DONE = "done"
CANCELLED = "cancelled"
EXPIRED = "expired"
COMPLETED = "completed"
ARCHIVED = "archived"
PROGRESSED = "progress"
ENDS = frozenset({GONE, DONE, CANCELLED, EXPIRED, COMPLETED, ARCHIVED})
"""States in which nothing more happens; only the last two leave anything behind."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What was read or heard about one task: its state, or how it ended."""

    state: str
    message: bytes = b""
    result: bytes | None = None
    progress: bytes = b""
    cancel: str = ""
    """The requested end while it is being cancelled: archive, delete or retry; otherwise empty."""
    traceback: bytes = b""
    in_go: bool = False
    """It is running, but not in a Veredus worker."""
    whole: bool = True
    """False if only the state is known."""

    @property
    def ended(self) -> bool:
        return self.state in ENDS


class Results:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def look(self, queue: str, task_id: str, channel: str = "", *, for_go: bool = False) -> TaskReport:
        """How a task ended. Unless it has ended, `channel` will be notified when it does.

        `for_go`: a Go server may run it, which deletes a task without a retention and sends no notification. While a
        producer waits, the task gets a retention of a minute.
        """
        keep = KEPT_FOR_WAITERS if for_go else 0
        return _sight(await self._redis.run(AWAIT, (keys.task(queue, task_id),), (channel, keep)))

    async def look_at_all(self, tasks: Sequence[tuple[str, str]], channel: str) -> list[TaskReport]:
        """The same for many tasks, by queue and id, in one round trip per server."""
        return await self.look_at_each([(queue, task_id, channel) for queue, task_id in tasks])

    async def look_at_each(self, tasks: Sequence[tuple[str, str, str]]) -> list[TaskReport]:
        """The same with a channel for each."""
        calls = [ScriptCall(AWAIT, (keys.task(queue, task_id),), (channel, 0)) for queue, task_id, channel in tasks]
        replies = await self._redis.run_each(calls)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return [_sight(reply) for reply in replies]

    async def progress(self, queue: str, task_id: str, owner: str, progress: bytes) -> bool:
        """Store the progress of a running task. Returns False if this owner no longer holds it."""
        args = (keys.queue_prefix(queue), task_id, owner, progress)
        return bool(await self._redis.run(PROGRESS, (keys.lease(queue),), args))

    async def write(self, queue: str, task_id: str, owner: str, result: bytes) -> bool:
        """Store a running task's result before it ends. Returns False if this owner no longer holds it."""
        args = (keys.queue_prefix(queue), task_id, owner, result)
        return bool(await self._redis.run(WRITE, (keys.lease(queue),), args))


def heard(data: bytes) -> tuple[str, TaskReport]:
    """A message on a listener's channel: the key of the task, and what happened to it.
    `lua/include/notify_waiters.lua` writes it."""
    verb, length, rest = data.split(b" ", 2)
    key, body = text(rest[: int(length)]), rest[int(length) :]
    state = text(verb)
    if state == PROGRESSED:
        return key, TaskReport(PROGRESSED, progress=body)
    if state == COMPLETED:
        return key, TaskReport(COMPLETED, result=body[1:] if body else None, whole=bool(body))
    return key, TaskReport(state, whole=state in (DONE, CANCELLED, EXPIRED))


def _sight(reply: Any) -> TaskReport:
    state, message, result, progress, cancel, traceback, held = reply
    if not state:
        return TaskReport(GONE)
    return TaskReport(
        text(state),
        message or b"",
        result,
        progress or b"",
        text(cancel or b""),
        traceback or b"",
        in_go=state == b"active" and not held,
    )
