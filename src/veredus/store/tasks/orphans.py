"""Orphans: cancels the children of durable tasks that were cancelled, from records that outlive the parents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from veredus.model.durable import FanOutRecord, child_id
from veredus.store.connection.redis import Redis
from veredus.store.inspect.inspect_part import data, text
from veredus.store.tasks.cancels import Cancels, Reword
from veredus.store.tasks.runs import kid_keys
from veredus.wire import keys

ENDED = (None, b"archived", b"completed")
"""States of a parent whose children may be cancelled: before, it could begin further ones."""
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
            action, fan_outs = json.loads(text(value))
            for fan_out, record in fan_outs or []:
                children = await self._without_outcome(queue, task_id, mark, fan_out, FanOutRecord.unpack(data(record)))
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
        ended = {int(position) for reply in replies if isinstance(reply, list) for position in reply}
        queues = enumerate(record.queue_of())
        return [(child, child_id(task_id, mark, name, at)) for at, child in queues if at not in ended]
