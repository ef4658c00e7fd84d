"""Cancels: ends a task before it runs, or marks it so that its worker ends it as requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys

CANCEL = load(
    "cancel/cancel",
    keys="pending scheduled retry archived due groups",
    args="queue_prefix channel max_size max_age task_id action expected message with_children",
)

REWORD = "reword"
Reword = Callable[[bytes], bytes]


class Cancelled(NamedTuple):
    outcome: str
    has_children: bool
    """Whether it has ended and left children that `Orphans` has to cancel."""


class Cancels:
    def __init__(self, redis: Redis, *, archive: ArchiveLimits = ASYNQS) -> None:
        self._redis = redis
        self._archive = archive

    async def cancel(
        self, queue: str, task_id: str, action: str, reword: Reword, *, with_children: bool = False
    ) -> Cancelled:
        """Cancel one task: `action` is archive, delete or retry. `reword` writes the reason into a message that is
        archived; the new message is stored only if the task still has the old one. `with_children`: which children a
        durable task has is noted, for `Orphans`."""
        names = (
            keys.pending(queue),
            keys.scheduled(queue),
            keys.retry(queue),
            keys.archived(queue),
            keys.due(queue),
            keys.groups(queue),
        )
        expected = message = b""
        while True:
            outcome, more = await self._redis.run(
                CANCEL,
                names,
                (
                    keys.queue_prefix(queue),
                    keys.CANCEL_CHANNEL,
                    self._archive.most,
                    self._archive.seconds,
                    task_id,
                    action,
                    expected,
                    message,
                    int(with_children),
                ),
            )
            if outcome.decode() != REWORD:
                return Cancelled(outcome.decode(), bool(more))
            expected, message = more, reword(more)

    async def asked(self, queue: str, task_id: str) -> str:
        """The requested end of this task: archive, delete, retry, or empty."""
        key = keys.task(queue, task_id)
        found = await self._redis.command("HGET", key, "cancel", key=key)
        return text(found) if found else ""
