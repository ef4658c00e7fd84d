"""Results: what a task has come to, for those who wait; how far it is and what it found, from those who run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.store.places import text
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load
from veredus.wire import keys

AWAIT = load("result/await", keys="task", args="channel keep_s [now_ms]")
PROGRESS = load("result/progress", keys="lease", args="task_prefix task_id owner progress [now_ms]")
WRITE = load("result/write", keys="lease", args="task_prefix task_id owner result [now_ms]")

GONE = "gone"
DONE = "done"
CANCELLED = "cancelled"
EXPIRED = "expired"
COMPLETED = "completed"
ARCHIVED = "archived"
PROGRESSED = "progress"
KEPT_FOR_WAITERS = 60
"""Seconds for which a task is kept that Go may run while somebody waits for it; below 128, to be one byte."""
ENDS = frozenset({GONE, DONE, CANCELLED, EXPIRED, COMPLETED, ARCHIVED})
"""States after which nothing more happens by itself; only the last two leave anything behind."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen or heard of one task: its state, or how it ended."""

    state: str
    message: bytes = b""
    result: bytes | None = None
    progress: bytes = b""
    cancel: str = ""
    """Not empty while it is being cancelled: archive, delete or retry."""
    traceback: bytes = b""
    in_go: bool = False
    """It runs, and no Veredus worker has it."""
    whole: bool = True
    """False when the state was told without what belongs to it."""

    @property
    def ended(self) -> bool:
        return self.state in ENDS


class Results:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def look(self, queue: str, task_id: str, channel: str = "", *, beside_go: bool = False) -> Sight:
        """What a task has come to. Unless it has ended, `channel` will be told when it does.

        `beside_go`: a Go server may run it, which deletes a task without a retention and tells nobody. While it waits,
        the task gets a retention of a minute.
        """
        keep = KEPT_FOR_WAITERS if beside_go else 0
        return _sight(await self._redis.run(AWAIT, (keys.task(queue, task_id),), (channel, keep)))

    async def look_at_all(self, tasks: Sequence[tuple[str, str]], channel: str) -> list[Sight]:
        """The same for many tasks, by queue and id, in one round trip per server."""
        calls = [Call(AWAIT, (keys.task(queue, task_id),), (channel, 0)) for queue, task_id in tasks]
        replies = await self._redis.run_each(calls)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return [_sight(reply) for reply in replies]

    async def progress(self, queue: str, task_id: str, owner: str, progress: bytes) -> bool:
        """Store how far a running task is; False if it is no longer this owner's."""
        args = (keys.task_prefix(queue), task_id, owner, progress)
        return bool(await self._redis.run(PROGRESS, (keys.lease(queue),), args))

    async def write(self, queue: str, task_id: str, owner: str, result: bytes) -> bool:
        """Store a running task's result before it ends; False if it is no longer this owner's."""
        args = (keys.task_prefix(queue), task_id, owner, result)
        return bool(await self._redis.run(WRITE, (keys.lease(queue),), args))


def heard(data: bytes) -> tuple[str, Sight]:
    """A message on a listener's channel: the key of the task, and what became of it (see lua/include/tell.lua)."""
    verb, length, rest = data.split(b" ", 2)
    key, body = text(rest[: int(length)]), rest[int(length) :]
    state = text(verb)
    if state == PROGRESSED:
        return key, Sight(PROGRESSED, progress=body)
    if state == COMPLETED:
        return key, Sight(COMPLETED, result=body[1:] if body else None, whole=bool(body))
    return key, Sight(state, whole=state in (DONE, CANCELLED, EXPIRED))


def _sight(reply: Any) -> Sight:
    state, message, result, progress, cancel, traceback, held = reply
    if not state:
        return Sight(GONE)
    return Sight(
        text(state),
        message or b"",
        result,
        progress or b"",
        text(cancel or b""),
        traceback or b"",
        in_go=state == b"active" and not held,
    )
