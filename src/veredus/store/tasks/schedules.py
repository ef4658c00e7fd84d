"""Schedules in Redis: the leader, the position of each schedule, the ticks that enqueue, and the records for Asynq's
tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import CommandRefused, StoreError
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load, with_insert
from veredus.store.tasks.intake import Intake, NewTask, no_record
from veredus.wire import keys
from veredus.wire.schedules import EnqueueRecord, decode_event, encode_event


class ScheduleTtl(NamedTuple):
    """A row of `begin`."""

    ttl_ms: int


class InsertArg(NamedTuple):
    """A row of `tick`: one argument of the script that stores the task."""

    value: Argument


class EntryRow(NamedTuple):
    """A row of `show`."""

    entry: bytes


class HistoryRow(NamedTuple):
    """A row of `record`."""

    second: int
    event: bytes


LEAD = load("cron/lead", keys="leader", args="scheduler lease_ms")
RESIGN = load("cron/resign", keys="leader", args="scheduler")
BEGIN = load("cron/begin", keys="MORE states", args="", rows=ScheduleTtl)
TICK = load("cron/tick", keys="state MORE insert_keys", args="at tick ttl_ms", rows=InsertArg)
SHOW = load("cron/show", keys="entries [schedulers]", args="ttl", rows=EntryRow)
HIDE = load("cron/hide", keys="entries [schedulers]", args="")
RECORD = load("cron/record", keys="history", args="most ttl", rows=HistoryRow)

ELSEWHERE, EARLY = -2, -3
PAUSED = -7
PAUSE = load("cron/pause", keys="state", args="")
RESUME = load("cron/resume", keys="state", args="")
_CHANGED: dict[int, bool | None] = {1: True, 0: False, -1: None}
"""Codes of a tick, in addition to those of an insert."""
HISTORY_SIZE = 1000
HISTORY_TTL = 30 * 86400
"""Seconds; Asynq's own history would never expire if its scheduler is killed."""


@dataclass(frozen=True, slots=True)
class Leadership:
    leads: bool
    left: float
    """Seconds that the leader's lease lasts."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a schedule: the second after which its next tick comes, and the last tick that was enqueued."""

    at: int
    fired: int | None


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of one schedule, to be enqueued as `entry` if the schedule's position is still `at`."""

    queue: str
    schedule_id: str
    at: int
    tick: int
    ttl_ms: int
    entry: NewTask


@dataclass(frozen=True, slots=True)
class Ticked:
    code: int
    """The code of an insert (1 created, 0 the id exists, -1 locked), ELSEWHERE, EARLY or PAUSED."""
    at: int | None
    """The position of the schedule now; None if Redis has none."""
    now_ms: int


class Schedules:
    def __init__(self, redis: Redis, intake: Intake | None = None) -> None:
        """`intake`: for those who fire ticks."""
        self._redis = redis
        self._intake = intake or Intake(redis)

    async def lead(self, scope: str, scheduler: str, lease_ms: int) -> Leadership:
        """Take or renew the leader's lease, unless another process holds it."""
        leads, left, now = await self._redis.run(LEAD, [keys.scheduler_leader(scope)], [scheduler, lease_ms])
        return Leadership(bool(leads), left / 1000, now)

    async def resign(self, scope: str, scheduler: str) -> None:
        await self._redis.run(RESIGN, [keys.scheduler_leader(scope)], [scheduler])

    async def begin(
        self, schedules: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    ) -> list[tuple[int, list[Position]] | StoreError]:
        """Look up schedules, each (id, ttl in ms), by queue, in one round trip per server. A new one starts at the
        present second, so that its first tick comes after now. Returns, for each queue, the server's time in ms and
        the positions."""
        calls = [
            ScriptCall(
                BEGIN,
                [keys.cron(queue, schedule_id) for schedule_id, _ in rows],
                BEGIN.args((), [ScheduleTtl(ttl) for _, ttl in rows]),
            )
            for queue, rows in schedules
        ]
        return [_begun(reply) for reply in await self._redis.run_each(calls)]

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked | StoreError]:
        """Enqueue ticks, in one round trip per server. Ticks of one schedule stay in the given order."""
        await self._intake.register(*{tick.queue for tick in ticks})
        return [_ticked(reply) for reply in await self._redis.run_each([self._tick_call(tick) for tick in ticks])]

    def _tick_call(self, tick: Tick) -> ScriptCall:
        insert = self._intake.insertion(tick.queue, [tick.entry], no_record(tick.queue))
        names = [keys.cron(tick.queue, tick.schedule_id), *insert.keys]
        args = TICK.args((tick.at, tick.tick, tick.ttl_ms), [InsertArg(value) for value in insert.args])
        return ScriptCall(with_insert(TICK, insert.script), names, args)

    async def pause(self, queue: str, schedule_id: str) -> bool | None:
        """Let its ticks pass until it is resumed. False if it was paused already; None if no scheduler of ours fires
        it."""
        return _CHANGED[await self._redis.run(PAUSE, [keys.cron(queue, schedule_id)], [])]

    async def resume(self, queue: str, schedule_id: str) -> bool | None:
        """False if it was not paused; None if no scheduler of ours fires it."""
        return _CHANGED[await self._redis.run(RESUME, [keys.cron(queue, schedule_id)], [])]

    async def is_paused(self, queue: str, schedule_id: str) -> bool:
        name = keys.cron(queue, schedule_id)
        return bool(await self._redis.command("HEXISTS", name, "paused", key=name))

    async def forget(self, queue: str, schedule_id: str) -> None:
        """A schedule was removed: if it is added again, it starts anew."""
        name = keys.cron(queue, schedule_id)
        await self._redis.command("DEL", name, key=name)

    async def show(self, identity: tuple[str, int, str], entries: Sequence[bytes], ttl: int) -> None:
        own = keys.scheduler_entries(*identity)
        args = SHOW.args((ttl,), [EntryRow(entry) for entry in entries])
        if self._redis.address.kind != "cluster":
            await self._redis.run(SHOW, [own, keys.SCHEDULERS], args)
            return
        now = await self._redis.run(SHOW, [own], args)
        await self._redis.command("ZADD", keys.SCHEDULERS, now // 1000 + ttl, own, key=keys.SCHEDULERS)

    async def hide(self, identity: tuple[str, int, str]) -> None:
        own = keys.scheduler_entries(*identity)
        if self._redis.address.kind != "cluster":
            await self._redis.run(HIDE, [own, keys.SCHEDULERS], [])
            return
        await self._redis.command("ZREM", keys.SCHEDULERS, own, key=keys.SCHEDULERS)
        await self._redis.run(HIDE, [own], [])

    async def record(self, events: Sequence[tuple[str, EnqueueRecord]]) -> None:
        """Write enqueued ticks to the histories of their schedules."""
        rows: dict[str, list[HistoryRow]] = {}
        for schedule_id, event in events:
            rows.setdefault(schedule_id, []).append(HistoryRow(int(event.at), encode_event(event)))
        calls = [
            ScriptCall(RECORD, (keys.scheduler_history(name),), RECORD.args((HISTORY_SIZE, HISTORY_TTL), row))
            for name, row in rows.items()
        ]
        for reply in await self._redis.run_each(calls):
            if isinstance(reply, BaseException):
                raise reply

    async def history(self, schedule_id: str, limit: int = 20) -> list[EnqueueRecord]:
        """The newest first."""
        name = keys.scheduler_history(schedule_id)
        return [decode_event(data) for data in await self._redis.command("ZREVRANGE", name, 0, limit - 1, key=name)]


def _begun(reply: Any) -> tuple[int, list[Position]] | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    now, *rows = reply
    try:
        return now, [Position(int(rows[i]), int(rows[i + 1] or 0) or None) for i in range(0, len(rows), 2)]
    except ValueError as exc:
        return CommandRefused(f"the position of a schedule is no number: {exc}")


def _ticked(reply: Any) -> Ticked | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    code, at, now = reply
    try:
        return Ticked(code, int(at) if at else None, now)
    except ValueError as exc:
        return CommandRefused(f"the position of a schedule is no number: {exc}")
