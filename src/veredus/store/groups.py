"""Groups: ripe ones are staged in aggregation sets, which become tasks or go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.store.connection import Argument
from veredus.store.intake import Entry
from veredus.store.places import text
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load
from veredus.wire import keys

CHECK = load(
    "group/check",
    keys="sets groups",
    args="task_prefix group_prefix set_ms limit most count {group set_id max_size max_delay_ms grace_ms}* [now_ms]",
)
READ = load("group/read", keys="set sets", args="task_prefix [now_ms]")
ARCHIVE = load(
    "group/archive",
    keys="set sets archived processed failed",
    args="task_prefix count {task_id unique_key message original}* [now_ms]",
)
RETRY = load(
    "group/retry",
    keys="set sets retry scheduled due processed failed",
    args="task_prefix channel count {task_id unique_key message delay_ms}* [now_ms]",
)
AGGREGATE = load(
    "group/aggregate",
    keys="set sets pending scheduled retry due groups",
    args=(
        "task_prefix group_prefix channel members count {member_id lock}* "
        "{task_id message unique_key unique_ttl expires due_at group order_key order_hold limit_key}* [now_ms]"
    ),
)
RECLAIM = load("group/reclaim", keys="sets groups", args="group_prefix limit set [now_ms]")

MOST = 10_000
"""Members of a set whose group has no max_size; the rest make further sets."""
RECLAIM_LIMIT = 1_000
"""Members given back in one call."""

MADE, LEFT_ALONE, NOT_RIPE, EMPTY, DAMAGED = 1, 2, 0, -1, -2
AGGREGATED, GONE, REFUSED = 1, 0, -1


class Probe(NamedTuple):
    """A group to look at, when it is ripe, and the id that its set shall have."""

    group: str
    set_id: str
    max_size: int
    max_delay_ms: int
    grace_ms: int


class Checked(NamedTuple):
    code: int
    wait: float | None
    """Seconds until the group, or what is left of it, is ripe; None when nothing is left."""


class Aside(NamedTuple):
    """A member that cannot be read, with what is stored in its place."""

    task_id: str
    unique_key: str
    message: bytes
    original: bytes = b""


class Later(NamedTuple):
    """A member that the function cannot read now, with what its next attempt is to find."""

    task_id: str
    unique_key: str
    message: bytes
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Members:
    """A set as it was found."""

    exists: bool
    rows: list[tuple[str, bytes]]
    dropped: list[tuple[str, str]]
    """Ids that are no tasks to aggregate, with the reason: dangling, wrongtype, duplicate, expired."""


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
        self, probes: Sequence[tuple[str, Sequence[Probe]]], *, limit: int, set_ms: int
    ) -> list[list[Checked] | StoreError]:
        """Look at groups of several queues, in one round trip per server; at most `limit` sets are made per queue."""
        calls = []
        for queue, rows in probes:
            args: list[Argument] = [keys.task_prefix(queue), keys.group_prefix(queue), set_ms, limit, MOST, len(rows)]
            for row in rows:
                args += row
            calls.append(Call(CHECK, (keys.aggregation_sets(queue), keys.groups(queue)), args))
        return [
            reply if isinstance(reply, StoreError) else _checked(_sound(reply))
            for reply in await self._redis.run_each(calls)
        ]

    async def read(self, queue: str, group: str, set_id: str) -> Members:
        names = [keys.aggregation_set(queue, group, set_id), keys.aggregation_sets(queue)]
        exists, rows, dropped = await self._redis.run(READ, names, [keys.task_prefix(queue)])
        return Members(bool(exists), [(text(i), data) for i, data in _pairs(rows)], _text_pairs(dropped))

    async def archive(self, queue: str, group: str, set_id: str, aside: Sequence[Aside]) -> int:
        """Put members aside; returns how many were still in the set."""
        args: list[Argument] = [keys.task_prefix(queue), len(aside)]
        for row in aside:
            args += row
        names = [
            keys.aggregation_set(queue, group, set_id),
            keys.aggregation_sets(queue),
            keys.archived(queue),
            keys.processed(queue),
            keys.failed(queue),
        ]
        return int(await self._redis.run(ARCHIVE, names, args))

    async def retry(self, queue: str, group: str, set_id: str, later: Sequence[Later]) -> int:
        """Make members due again, for their group; returns how many were still in the set."""
        args: list[Argument] = [keys.task_prefix(queue), keys.delay_wakeup(queue), len(later)]
        for row in later:
            args += row
        names = [
            keys.aggregation_set(queue, group, set_id),
            keys.aggregation_sets(queue),
            keys.retry(queue),
            keys.scheduled(queue),
            keys.due(queue),
            keys.processed(queue),
            keys.failed(queue),
        ]
        return int(await self._redis.run(RETRY, names, args))

    async def aggregate(
        self, queue: str, group: str, set_id: str, members: Sequence[tuple[str, str]], entries: Sequence[Entry]
    ) -> tuple[int, list[int]]:
        """Put the tasks into the queue in place of the members (id and unique lock), all or nothing."""
        args: list[Argument] = [
            keys.task_prefix(queue),
            keys.group_prefix(queue),
            keys.delay_wakeup(queue),
            len(members),
            len(entries),
        ]
        for member in members:
            args += member
        for e in entries:
            args += (e.task_id, e.message, e.unique_key, e.unique_ttl, e.expires, e.due, e.group)
            args += (e.order_key, int(e.order_hold), e.limit_key)
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
        """Give back the sets of each queue whose time is over, a bounded number of members in one call."""
        calls = [self._reclaim(queue, "") for queue in queues]
        return [
            reply if isinstance(reply, StoreError) else _reclaimed(_sound(reply))
            for reply in await self._redis.run_each(calls)
        ]

    async def give_back(self, queue: str, group: str, set_id: str) -> int:
        """One set, whole, whether its time is over or not; returns the number of its members."""
        moved, more = 0, True
        while more:
            call = self._reclaim(queue, keys.aggregation_set(queue, group, set_id))
            result = _reclaimed(await self._redis.run(call.script, call.keys, call.args))
            moved, more = moved + result.moved, result.more
        return moved

    def _reclaim(self, queue: str, set_key: str) -> Call:
        names = (keys.aggregation_sets(queue), keys.groups(queue))
        return Call(RECLAIM, names, (keys.group_prefix(queue), RECLAIM_LIMIT, set_key))


def _sound(reply: Any) -> Any:
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _names(reply: Sequence[bytes]) -> list[str]:
    """Names that are not UTF-8 cannot come from Asynq, whose messages carry the name too: nobody aggregates them."""
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
