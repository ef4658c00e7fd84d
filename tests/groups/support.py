"""A queue with groups seen from a test: the group scripts called directly, at a given time."""

from __future__ import annotations

from typing import Any

from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, _filled
from veredus.model.message import TaskMessage
from veredus.store.tasks.groups import AGGREGATE, ARCHIVE, CHECK, READ, RECLAIM, RETRY
from veredus.store.tasks.intake import ADD
from veredus.wire import keys
from veredus.wire.messages import encode_task

SECOND = NOW // 1000
SET = "5e7"
MINUTE = 60_000


def seq(place: int = 1, now: int = NOW) -> str:
    """The `group_seq` of the task that stood at this place in a call at `now`."""
    return f"{now}000000-{place:06}"


def member(group: str, message: str = "", place: int = 1, now: int = NOW, **more: str) -> Key:
    """The hash of a task that waits in a group."""
    fields = {"msg": message, "state": "aggregating", "group": group, "group_seq": seq(place, now), **more}
    return Key("hash", fields, "none")


class GroupQueue(Queue):
    """Every script of the groups of one queue."""

    def set_key(self, group: str, set_id: str = SET) -> str:
        return keys.aggregation_set(self.name, group, set_id)

    async def add(self, *entries: Any, call: int | None = None, now: int | None = NOW) -> list[int]:
        """Each entry: (group, id), then message, lock, ttl, expires as far as given."""
        rows = [(*_filled(tuple(rest), ["", b"", "", 0, ""]), group) for group, *rest in entries]
        args = ADD.args([self.key(""), *self.numbered(call)], rows)
        codes: list[int] = await self._run(ADD, self.keys("groups sent:p:1"), args, now)
        return codes

    async def check(
        self, *probes: Any, limit: int = 10, most: int = 10_000, set_ms: int = 120_000, now: int | None = NOW
    ) -> list[tuple[int, int]]:
        """Each probe: a group, or (group, set id, max size, max delay ms, grace ms). Code and due instant of each."""
        rows = [tuple(_filled(probe, ["", SET, 0, 0, MINUTE])) for probe in probes]
        args = CHECK.args([self.key(""), set_ms, limit, most], rows)
        at, answers = await self._run(CHECK, self.keys("aggregation_sets groups"), args, now)
        assert now is None or at == now
        return [(answers[i], answers[i + 1]) for i in range(0, len(answers), 2)]

    async def stage(self, group: str, set_id: str = SET, *, now: int = NOW) -> None:
        """Move all members of a group into a set, whose time begins now."""
        assert await self.check((group, set_id, 0, 0, 0), now=now) == [(1, -1)]

    async def read(self, group: str, set_id: str = SET, *, now: int | None = NOW) -> tuple[int, list[str], list[str]]:
        """Whether the set is there, the ids, and what was dropped."""
        names = [self.set_key(group, set_id), self.key("aggregation_sets")]
        exists, rows, dropped = await self._run(READ, names, [self.key("")], now)
        return exists, [item.decode() for item in rows[::2]], [item.decode() for item in dropped]

    async def archive_members(self, group: str, *rows: Any, set_id: str = SET) -> int:
        """Each row: (id, lock, message, original) as far as given."""
        args = ARCHIVE.args([self.key("")], [tuple(_filled(row, ["", "", b"new", b""])) for row in rows])
        names = [self.set_key(group, set_id), *self.keys("aggregation_sets archived")]
        return int(await self._run(ARCHIVE, names, args, NOW))

    async def retry_members(self, group: str, *rows: Any, set_id: str = SET) -> int:
        """Each row: (id, lock, message, delay in ms) as far as given."""
        filled = [tuple(_filled(row, ["", "", b"new", 0])) for row in rows]
        args = RETRY.args([self.key(""), keys.delay_wakeup(self.name)], filled)
        names = [self.set_key(group, set_id), *self.keys("aggregation_sets retry scheduled due")]
        return int(await self._run(RETRY, names, args, NOW))

    async def aggregate(
        self, group: str, members: list[Any], tasks: list[Any], set_id: str = SET, *, now: int | None = NOW
    ) -> tuple[int, list[int]]:
        """Members: an id, or (id, lock). Tasks: (id, message, lock, ttl, expires, due, group, order key, hold, limit
        key), as far as given."""
        args = AGGREGATE.args(
            [self.key(""), keys.delay_wakeup(self.name)],
            [tuple(_filled(row, ["", ""])) for row in members],
            [tuple(_filled(row, ["", b"", "", 0, "", "", "", "", 0, ""])) for row in tasks],
        )
        names = [self.set_key(group, set_id), *self.keys("aggregation_sets pending scheduled retry due groups")]
        code, codes = await self._run(AGGREGATE, names, args, now)
        return code, list(codes)

    async def reclaim(
        self, *, limit: int = 1000, set_key: str = "", now: int | None = NOW
    ) -> tuple[int, int, list[str]]:
        args = [self.key(""), limit, set_key]
        moved, more, damaged = await self._run(RECLAIM, self.keys("aggregation_sets groups"), args, now)
        return moved, more, [item.decode() for item in damaged]

    async def add_like_go(
        self, group: str, task_id: str, *, at: int = SECOND, lock: str = "", payload: bytes = b""
    ) -> None:
        """What Asynq's AddToGroup does; with a lock, what AddToGroupUnique does: no hash field tells of it."""
        message = TaskMessage(
            type="item", payload=payload, id=task_id, queue=self.name, retry=25, timeout=1800, group_key=group,
            unique_key=lock,
        )  # fmt: skip
        if lock:
            assert await self.client.set(lock, task_id, nx=True, ex=3600)
        fields = {"msg": encode_task(message), "state": "aggregating", "group": group}
        await self.client.hset(self.task(task_id), mapping=fields)
        await self.client.zadd(self.key(f"g:{group}"), {task_id: at})
        await self.client.sadd(self.key("groups"), group)
        await self.client.sadd(keys.QUEUES, self.name)
