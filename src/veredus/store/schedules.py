"""Schedules in Redis: who leads, where each stands, the tick that enqueues, and what Asynq's tools see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.errors import CommandRefused, StoreError
from veredus.store.connection import Argument
from veredus.store.intake import Entry, Intake, no_record
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load, with_insert
from veredus.wire import keys
from veredus.wire.schedules import EnqueueEvent, decode_event, encode_event

LEAD = load("cron/lead", keys="leader", args="scheduler lease_ms [now_ms]")
RESIGN = load("cron/resign", keys="leader", args="scheduler")
BEGIN = load("cron/begin", keys="{state}*", args="{ttl_ms}* [now_ms]")
TICK = load(
    "cron/tick",
    keys="state {key of the insert}*",
    args="at tick ttl_ms count {argument of the insert}* [now_ms]",
)
SHOW = load("cron/show", keys="entries [schedulers]", args="ttl count {entry}* [now_ms]")
HIDE = load("cron/hide", keys="entries [schedulers]", args="")
RECORD = load("cron/record", keys="history", args="most ttl count {second event}*")

ELSEWHERE, EARLY = -2, -3
"""Codes of a tick beside those of an insert."""
HISTORY_SIZE = 1000
HISTORY_TTL = 30 * 86400
"""Seconds; Asynq's own history has no end if its scheduler is killed."""


@dataclass(frozen=True, slots=True)
class Leadership:
    leads: bool
    left: float
    """Seconds that the leader's lease lasts, whoever it is."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a schedule stands: the second after which its next tick comes, and the tick that was enqueued last."""

    at: int
    fired: int | None


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of one schedule, to be enqueued as `entry` if the schedule still stands `at`."""

    queue: str
    schedule_id: str
    at: int
    tick: int
    ttl_ms: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Ticked:
    code: int
    """That of an insert (1 created, 0 the id exists, -1 locked), ELSEWHERE or EARLY."""
    at: int | None
    """Where the schedule stands now; None if Redis knows nothing of it."""
    now_ms: int


class Schedules:
    def __init__(self, redis: Redis, intake: Intake) -> None:
        self._redis = redis
        self._intake = intake

    async def lead(self, scope: str, scheduler: str, lease_ms: int) -> Leadership:
        """Take or renew the lease, if nobody else has it."""
        leads, left, now = await self._redis.run(LEAD, [keys.scheduler_leader(scope)], [scheduler, lease_ms])
        return Leadership(bool(leads), left / 1000, now)

    async def resign(self, scope: str, scheduler: str) -> None:
        await self._redis.run(RESIGN, [keys.scheduler_leader(scope)], [scheduler])

    async def begin(
        self, schedules: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    ) -> list[tuple[int, list[Position]] | StoreError]:
        """Look up schedules, each (id, ttl in ms), by queue, in one round trip per server. A new one stands at the
        present second, so that its first tick comes after now. For each queue: the server's time in ms, and where each
        stands."""
        calls = [
            Call(BEGIN, [keys.cron(queue, schedule_id) for schedule_id, _ in rows], [ttl for _, ttl in rows])
            for queue, rows in schedules
        ]
        return [_begun(reply) for reply in await self._redis.run_each(calls)]

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked | StoreError]:
        """Enqueue ticks, one round trip per server. Several of one schedule follow each other in the order given."""
        await self._intake.register(*{tick.queue for tick in ticks})
        return [_ticked(reply) for reply in await self._redis.run_each([self._tick_call(tick) for tick in ticks])]

    def _tick_call(self, tick: Tick) -> Call:
        insert = self._intake.insertion(tick.queue, [tick.entry], no_record(tick.queue))
        names = [keys.cron(tick.queue, tick.schedule_id), *insert.keys]
        return Call(
            with_insert(TICK, insert.script), names, [tick.at, tick.tick, tick.ttl_ms, len(insert.args), *insert.args]
        )

    async def forget(self, queue: str, schedule_id: str) -> None:
        """A schedule that was removed: added again, it starts anew."""
        name = keys.cron(queue, schedule_id)
        await self._redis.command("DEL", name, key=name)

    async def show(self, identity: tuple[str, int, str], entries: Sequence[bytes], ttl: int) -> None:
        own = keys.scheduler_entries(*identity)
        args: list[Argument] = [ttl, len(entries), *entries]
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

    async def record(self, events: Sequence[tuple[str, EnqueueEvent]]) -> None:
        """Write enqueued ticks into the histories of their schedules."""
        rows: dict[str, list[Argument]] = {}
        for schedule_id, event in events:
            rows.setdefault(schedule_id, []).extend((int(event.at), encode_event(event)))
        calls = [
            Call(RECORD, (keys.scheduler_history(name),), [HISTORY_SIZE, HISTORY_TTL, len(row) // 2, *row])
            for name, row in rows.items()
        ]
        for reply in await self._redis.run_each(calls):
            if isinstance(reply, BaseException):
                raise reply

    async def history(self, schedule_id: str, limit: int = 20) -> list[EnqueueEvent]:
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
