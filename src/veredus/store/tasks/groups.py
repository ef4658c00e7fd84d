"""Groups: ripe ones are staged as aggregation sets, which become tasks or go back to their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.store.tasks.intake import NewTask
from veredus.wire import keys

MOST = 10_000
"""Members of a set whose group has no max_size; further members make further sets."""
RECLAIM_LIMIT = 1_000
"""Members returned to their group in one call."""

MADE, LEFT_ALONE, NOT_RIPE, EMPTY, DAMAGED = 1, 2, 0, -1, -2
AGGREGATED, GONE, REFUSED = 1, 0, -1


class GroupProbe(NamedTuple):
    """A group to check, when it is ripe, and the id for its set."""

    group: str
    set_id: str
    max_size: int
    max_delay_ms: int
    grace_ms: int


class Checked(NamedTuple):
    code: int
    wait: float | None
    """Seconds until the group, or the rest of it, is ripe; None if nothing is left."""


class UnreadableMember(NamedTuple):
    """A member that cannot be decoded, with the message that replaces it."""

    task_id: str
    unique_key: str
    message: bytes
    original: bytes = b""


class RetriedMember(NamedTuple):
    """A member that the function cannot read now, with the message for its next attempt."""

    task_id: str
    unique_key: str
    message: bytes
    delay_ms: int


class SetMember(NamedTuple):
    """A member of an aggregated set, with its unique lock."""

    task_id: str
    unique_key: str


class AggregatedRow(NamedTuple):
    """A task made from a set."""

    task_id: str
    message: bytes
    unique_key: str
    unique_ttl: int
    expires: str
    due_at: str
    group: str
    order_key: str
    order_hold: bool
    limit_key: str


CHECK = load("group/check", keys="sets groups", args="queue_prefix set_ms limit most", rows=GroupProbe)
READ = load("group/read", keys="set sets", args="queue_prefix")
ARCHIVE = load("group/archive", keys="set sets archived", args="queue_prefix", rows=UnreadableMember)
RETRY = load("group/retry", keys="set sets retry scheduled due", args="queue_prefix channel", rows=RetriedMember)
AGGREGATE = load(
    "group/aggregate",
    keys="set sets pending scheduled retry due groups",
    args="queue_prefix channel",
    rows=(SetMember, AggregatedRow),
)
RECLAIM = load("group/reclaim", keys="sets groups", args="queue_prefix limit named")


@dataclass(frozen=True, slots=True)
class Members:
    """The content of a set."""

    exists: bool
    rows: list[tuple[str, bytes]]
    dropped: list[tuple[str, str]]
    """Ids that are not tasks to aggregate, with the reason: dangling, wrongtype, duplicate, expired."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    moved: int
    more: bool
    damaged: list[tuple[str, str]]


class Groups:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def names(self, queues: Sequence[str]) -> list[list[str] | StoreError]:
        """The groups of each queue that have members, in one round trip per server."""
        replies = await self._redis.command_each([("SMEMBERS", keys.groups(queue)) for queue in queues])
        return [reply if isinstance(reply, StoreError) else _names(_sound(reply)) for reply in replies]

    async def check(
        self, probes: Sequence[tuple[str, Sequence[GroupProbe]]], *, limit: int, set_ms: int
    ) -> list[list[Checked] | StoreError]:
        """Check groups of several queues, in one round trip per server; at most `limit` sets are made per queue."""
        calls = []
        for queue, rows in probes:
            args = CHECK.args((keys.queue_prefix(queue), set_ms, limit, MOST), rows)
            calls.append(ScriptCall(CHECK, (keys.aggregation_sets(queue), keys.groups(queue)), args))
        return [
            reply if isinstance(reply, StoreError) else _checked(_sound(reply))
            for reply in await self._redis.run_each(calls)
        ]

    async def read(self, queue: str, group: str, set_id: str) -> Members:
        names = [keys.aggregation_set(queue, group, set_id), keys.aggregation_sets(queue)]
        exists, rows, dropped = await self._redis.run(READ, names, [keys.queue_prefix(queue)])
        return Members(bool(exists), [(text(i), data) for i, data in _pairs(rows)], _text_pairs(dropped))

    async def archive(self, queue: str, group: str, set_id: str, aside: Sequence[UnreadableMember]) -> int:
        """Archive members; returns how many were still in the set."""
        names = [
            keys.aggregation_set(queue, group, set_id),
            keys.aggregation_sets(queue),
            keys.archived(queue),
        ]
        return int(await self._redis.run(ARCHIVE, names, ARCHIVE.args((keys.queue_prefix(queue),), aside)))

    async def retry(self, queue: str, group: str, set_id: str, later: Sequence[RetriedMember]) -> int:
        """Make members due again, for their group; returns how many were still in the set."""
        args = RETRY.args((keys.queue_prefix(queue), keys.delay_wakeup(queue)), later)
        names = [
            keys.aggregation_set(queue, group, set_id),
            keys.aggregation_sets(queue),
            keys.retry(queue),
            keys.scheduled(queue),
            keys.due(queue),
        ]
        return int(await self._redis.run(RETRY, names, args))

    async def aggregate(
        self, queue: str, group: str, set_id: str, members: Sequence[tuple[str, str]], entries: Sequence[NewTask]
    ) -> tuple[int, list[int]]:
        """Replace the members (id and unique lock) by the tasks, all or nothing."""
        made = [AggregatedRow(*e.stored, e.due, e.group, e.order_key, e.order_hold, e.limit_key) for e in entries]
        args = AGGREGATE.args((keys.queue_prefix(queue), keys.delay_wakeup(queue)), members, made)
        names = [
            keys.aggregation_set(queue, group, set_id),
            keys.aggregation_sets(queue),
            keys.pending(queue),
            keys.scheduled(queue),
            keys.retry(queue),
            keys.due(queue),
            keys.groups(queue),
        ]
        code, codes = await self._redis.run(AGGREGATE, names, args)
        return code, list(codes)

    async def reclaim(self, queues: Sequence[str]) -> list[Reclaimed | StoreError]:
        """Return the members of each queue's expired sets to their groups, a bounded number per call."""
        calls = [self._reclaim(queue, "") for queue in queues]
        return [
            reply if isinstance(reply, StoreError) else _reclaimed(_sound(reply))
            for reply in await self._redis.run_each(calls)
        ]

    async def give_back(self, queue: str, group: str, set_id: str) -> int:
        """Return all members of one set, expired or not; returns their number."""
        moved, more = 0, True
        while more:
            call = self._reclaim(queue, keys.aggregation_set(queue, group, set_id))
            result = _reclaimed(await self._redis.run(call.script, call.keys, call.args))
            moved, more = moved + result.moved, result.more
        return moved

    def _reclaim(self, queue: str, set_key: str) -> ScriptCall:
        names = (keys.aggregation_sets(queue), keys.groups(queue))
        return ScriptCall(RECLAIM, names, (keys.queue_prefix(queue), RECLAIM_LIMIT, set_key))


def _sound(reply: Any) -> Any:
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _names(reply: Sequence[bytes]) -> list[str]:
    """Names that are not UTF-8 cannot come from Asynq, whose messages contain the name too: they are not aggregated."""
    names = []
    for name in reply:
        try:
            names.append(name.decode())
        except UnicodeDecodeError:
            continue
    return sorted(names)


def _checked(reply: Any) -> list[Checked]:
    now, answers = reply
    return [
        Checked(answers[i], None if answers[i + 1] < 0 else max(0.0, (answers[i + 1] - now) / 1000))
        for i in range(0, len(answers), 2)
    ]


def _reclaimed(reply: Any) -> Reclaimed:
    moved, more, damaged = reply
    return Reclaimed(moved, bool(more), _text_pairs(damaged))


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def _text_pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    return [(a.decode(errors="replace"), b.decode(errors="replace")) for a, b in _pairs(flat)]
