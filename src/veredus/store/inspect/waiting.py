"""What Redis knows about why a task waits."""

from __future__ import annotations

from veredus.model.info import TaskInfo
from veredus.model.run_info import read_waiting, waiting_since
from veredus.model.waiting import WaitInfo
from veredus.store.inspect.inspect_part import InspectPart, data, text
from veredus.wire import keys
from veredus.wire.times import count_of, whole


class Waiting(InspectPart):
    """A damaged key leaves out what it would say: the doctor reports it."""

    async def reasons(self, task: TaskInfo) -> list[WaitInfo]:
        """What a durable task waits for, order key, limit, due time and pause; nothing for one that runs or has
        ended."""
        if task.state not in ("pending", "scheduled", "retry"):
            return []
        key = data(keys.task(task.queue, task.id))
        fields, paused = await self.redis.command_each(
            [("HMGET", key, "order_key", "limited_by", "pending_since", "waiting"), ("GET", keys.paused(task.queue))]
        )
        order_key, scope, since, waiting = fields if isinstance(fields, list) else (None, None, None, None)
        since_ms = count_of(since) // 1_000_000
        found = []
        wait = read_waiting(text(waiting)) if waiting and task.state == "scheduled" else None
        if wait is not None:
            began, name = (
                waiting_since(text(waiting or b"")),
                task.waiting_for.partition(" ")[2].partition(" until ")[0],
            )
            found.append(WaitInfo(reason=wait.kind, name=name, since_ms=began, until_ms=wait.ends))
        elif task.waiting_for and scope:
            found.append(await self._limit(task.queue, text(scope), since_ms))
        elif task.waiting_for and order_key:
            found.append(await self._order_key(task.queue, text(order_key), since_ms))
        elif task.state != "pending" and task.next_ms:
            found.append(WaitInfo(reason="due", until_ms=task.next_ms))
        if isinstance(paused, bytes):
            found.append(WaitInfo(reason="paused", since_ms=count_of(paused) * 1000))
        return found

    async def _order_key(self, queue: str, order_key: str, since_ms: int) -> WaitInfo:
        lane = keys.lane(queue, order_key)
        (first,) = await self.redis.command_each([("ZRANGE", data(lane), 0, 0)])
        holder = text(first[0]) if isinstance(first, list) and first else ""
        state = None
        if holder:
            (state,) = await self.redis.command_each([("HGET", data(keys.task(queue, holder)), "state")])
        return WaitInfo(
            reason="order key",
            name=order_key,
            held_by=holder,
            holder_state=text(state) if isinstance(state, bytes) else "",
            since_ms=since_ms,
        )

    async def _limit(self, queue: str, scope: str, since_ms: int) -> WaitInfo:
        (at,) = await self.redis.command_each([("ZSCORE", keys.limited(queue), data(scope))])
        return WaitInfo(
            reason="limit", name=scope, since_ms=since_ms, until_ms=whole(at) if isinstance(at, bytes) else 0
        )
