"""Cancels: end a task before it runs, or mark it so that whoever runs it ends it as asked."""

from __future__ import annotations

from collections.abc import Callable

from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.store.places import text
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.wire import keys

CANCEL = load(
    "cancel/cancel",
    keys="pending scheduled retry archived due groups",
    args="task_prefix group_prefix channel max_size max_age task_id action expected message [now_ms]",
)

REWORD = "reword"


class Cancels:
    def __init__(self, redis: Redis, *, archive: ArchiveLimits = ASYNQS, now_ms: int | None = None) -> None:
        self._redis = redis
        self._archive = archive
        self._now: tuple[int, ...] = () if now_ms is None else (now_ms,)

    async def cancel(self, queue: str, task_id: str, action: str, reword: Callable[[bytes], bytes]) -> str:
        """Cancel one task: `action` is archive, delete or retry. `reword` writes the reason into a message that is to
        be archived; the new one is stored only if the task still has the old one."""
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
            outcome, current = await self._redis.run(
                CANCEL,
                names,
                (
                    keys.task_prefix(queue),
                    keys.group_prefix(queue),
                    keys.CANCEL_CHANNEL,
                    self._archive.most,
                    self._archive.seconds,
                    task_id,
                    action,
                    expected,
                    message,
                    *self._now,
                ),
            )
            if outcome.decode() != REWORD:
                said: str = outcome.decode()
                return said
            expected, message = current, reword(current)

    async def asked(self, queue: str, task_id: str) -> str:
        """How this task shall be cancelled: archive, delete, retry, or empty."""
        key = keys.task(queue, task_id)
        found = await self._redis.command("HGET", key, "cancel", key=key)
        return text(found) if found else ""
