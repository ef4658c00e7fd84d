"""Orphans: cancels the children of durable tasks that were cancelled, from records that outlive the parents."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from veredus.errors import DamagedRun
from veredus.model.durable import UNREADABLE, FanOutRecord, child_id
from veredus.store.connection.redis import Redis
from veredus.store.inspect.inspect_part import data, text
from veredus.store.tasks.cancels import Cancels, Reword
from veredus.store.tasks.runs import is_position, kid_keys
from veredus.wire import keys

logger = logging.getLogger("veredus.worker")

ENDED = (None, b"archived", b"completed")
"""States of a parent whose children may be cancelled: before, it could begin further ones."""
ACTIONS = ("archive", "delete")
PAGE = 100
"""Children that are cancelled at once."""


class Orphans:
    """The process that cancelled the parent does it at once; should it die, the looks of a worker go on. To do it
    twice changes nothing."""

    def __init__(self, redis: Redis, cancels: Cancels) -> None:
        self._redis = redis
        self._cancels = cancels

    async def cancel(self, queue: str, reword: Reword) -> None:
        """Cancel the children of all parents of this queue that have ended, and theirs in other queues."""
        left = {queue}
        while left:
            left |= await self._cancel_in(left.pop(), reword)

    async def _cancel_in(self, queue: str, reword: Reword) -> set[str]:
        """Returns the queues of the children."""
        key, queues = keys.orphans(queue), set[str]()
        found = await self._redis.command("HGETALL", key, key=key)
        for field, value in zip(found[::2], found[1::2], strict=True):
            task_id, _, mark = text(field).rpartition(" ")
            name = keys.task(queue, task_id)
            state, now_mark = await self._redis.command("HMGET", data(name), "state", "run", key=name)
            if state not in ENDED and now_mark == mark.encode():
                continue
            try:
                action, fan_outs = _unpack(text(value))
            except DamagedRun as exc:
                logger.warning("%s: children of task %s of queue %s may go on, it was removed", exc, task_id, queue)
                action, fan_outs = "", []
            for fan_out, record in fan_outs:
                children = await self._without_outcome(queue, task_id, mark, fan_out, record)
                for start in range(0, len(children), PAGE):
                    await self._cancel_page(children[start : start + PAGE], action, reword)
                queues |= {child for child, _ in children}
            await self._redis.command("HDEL", key, field, key=key)
        return queues

    async def _cancel_page(self, page: Sequence[tuple[str, str]], action: str, reword: Reword) -> None:
        await asyncio.gather(
            *[self._cancels.cancel(queue, task_id, action, reword, with_children=True) for queue, task_id in page]
        )

    async def _without_outcome(
        self, queue: str, task_id: str, mark: str, name: str, record: FanOutRecord
    ) -> list[tuple[str, str]]:
        names = kid_keys(queue, task_id, mark, name, record.size)
        replies = await self._redis.command_each([("HKEYS", data(one)) for one in names])
        positions = [position for reply in replies if isinstance(reply, list) for position in reply]
        ended = {int(position) for position in positions if is_position(position)}
        queues = enumerate(record.queue_of())
        return [(child, child_id(task_id, mark, name, at)) for at, child in queues if at not in ended]


def _unpack(value: str) -> tuple[str, list[tuple[str, FanOutRecord]]]:
    """How children are to be cancelled, and the fan-outs by their names. Raises DamagedRun."""
    try:
        action, found = json.loads(value)
        fan_outs = [(str(name), FanOutRecord.unpack(data(record))) for name, record in found or []]
    except (*UNREADABLE, AttributeError) as exc:
        raise DamagedRun(f"not a record of cancelled children: {value[:100]!r}") from exc
    if action not in ACTIONS:
        raise DamagedRun(f"an unknown way to cancel children: {value[:100]!r}")
    return action, fan_outs
