"""Script calls of many rows: one call on one server, one per partition on a cluster; and how nodes are told there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from veredus.errors import NotReady, StoreError
from veredus.store.batching import in_batches
from veredus.store.connection import Argument
from veredus.store.redis import Call, Redis
from veredus.store.scripts import Script
from veredus.wire import session_keys as keys

Row = TypeVar("Row")
MAX_ROWS = 256
"""More in one script would hold up everybody else on the server."""
EMPTIED_MS = 24 * 3600 * 1000
"""How long the sweeps of the gateways have to look at groups that perhaps have no member."""
PATIENCE = 3.0
"""Seconds for which the rest of several calls is tried, if a server was not ready for it."""
PLAIN, SHARDED = "p", "s"


class Partitions:
    """One server takes rows of all partitions in one call; a cluster gets one call per partition, all at once."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.one_server = redis.address.kind != "cluster"
        self._channel = PLAIN if self.one_server else ""
        self._asking = asyncio.Lock()
        self.now_ms: int | None = None
        """The time that scripts shall believe in; only for tests."""

    async def channel(self) -> str:
        """How nodes are told: with plain pub/sub, or with the sharded one of a cluster that has it."""
        if not self._channel:
            async with self._asking:
                if not self._channel:
                    found = await self.redis.command("COMMAND", "INFO", "SPUBLISH", key=keys.sessions(keys.TAGS[0]))
                    self._channel = SHARDED if found and found[0] else PLAIN
        return self._channel

    async def announce(self, groups: Sequence[str], tag: str, *, before: bool = False) -> None:
        """Where groups have members: written before a join, so that a crash hides nobody, and after it: see
        `forget_groups`. Nothing may come of the join: a sweep looks later."""
        rows: list[Sequence[Argument]] = []
        for group in groups:
            rows.append(("SADD", keys.group_partitions(keys.check_name("group", group)), tag))
            if before:
                rows.append(("ZADD", keys.emptied(tag), "NX", 0, group))
        if rows and before:
            rows.append(("PEXPIRE", keys.emptied(tag), EMPTIED_MS))
        await self._command_each(rows)

    async def forget_groups(self, rows: Sequence[tuple[str, str]]) -> None:
        """Of each group nobody is left in this partition (group, tag). Looked at again afterwards: whoever joins writes
        the member first, then the partition once more, so one of us sees the other."""
        for first in range(0, len(rows), MAX_ROWS):
            part = rows[first : first + MAX_ROWS]
            await self._command_each([("SREM", keys.group_partitions(group), tag) for group, tag in part])
            found = await self._command_each([("EXISTS", keys.group(tag, group)) for group, tag in part])
            here = [row for row, is_there in zip(part, found, strict=True) if is_there]
            await self._command_each([("SADD", keys.group_partitions(group), tag) for group, tag in here])
            await self._command_each([("ZREM", keys.emptied(tag), group) for group, tag in part])

    async def _command_each(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        replies = await self.redis.command_each(rows) if rows else []
        raise_first(replies)
        return replies

    async def run(self, script: Script, tag: str, args: Sequence[Argument]) -> Any:
        """One call in one partition; the first argument of all these scripts is how nodes are told."""
        return await self.redis.run(script, (keys.sessions(tag),), (await self.channel(), *args, *self._time()))

    async def run_rows(
        self,
        script: Script,
        rows: Sequence[Row],
        tag_of: Callable[[Row], str],
        args_of: Callable[[Row], Iterable[Argument]],
        size_of: Callable[[Row], int] = lambda row: 0,
        head: Sequence[Argument] = (),
        most: int = MAX_ROWS,
    ) -> list[Any]:
        """One reply per row, in the order of the rows; rows of one session are taken in their order. If that takes
        several calls, only those that a server was not ready for are made again, after the others."""
        channel = await self.channel()
        shares: list[list[int]] = []
        if self.one_server:
            shares.append(list(range(len(rows))))
        else:
            by_tag: dict[str, list[int]] = {}
            for position, row in enumerate(rows):
                by_tag.setdefault(tag_of(row), []).append(position)
            shares.extend(by_tag.values())
        calls: list[tuple[list[int], Call]] = []
        for share in shares:
            for batch in in_batches(share, lambda position: size_of(rows[position]), most):
                args: list[Argument] = [channel, *head, len(batch)]
                for position in batch:
                    args += args_of(rows[position])
                args += self._time()
                calls.append((batch, Call(script, (keys.sessions(tag_of(rows[batch[0]])),), args)))
        if len(calls) == 1:
            call = calls[0][1]
            return list(await self.redis.run(call.script, call.keys, call.args))
        replies: list[Any] = [None] * len(rows)
        again, is_begun = NotReadyTries(PATIENCE), False
        while True:
            found = await self.redis.run_each([call for _, call in calls])
            refused = again.of(found)
            for (batch, _), answers in zip(calls, found, strict=True):
                if not isinstance(answers, NotReady):
                    is_begun = True
                    for position, answer in zip(batch, answers, strict=True):
                        replies[position] = answer
            if refused is None:
                return replies
            calls = [call for call, answers in zip(calls, found, strict=True) if isinstance(answers, NotReady)]
            await again.wait(refused, is_begun=is_begun)

    async def run_tags(
        self, script: Script, args_of: Callable[[str], Sequence[Argument]], tags: Sequence[str]
    ) -> list[Any]:
        """One call per partition, pipelined. An error stands in place of its reply."""
        channel = await self.channel()
        return await self.redis.run_each(
            [Call(script, (keys.sessions(tag),), (channel, *args_of(tag), *self._time())) for tag in tags]
        )

    def _time(self) -> tuple[int, ...]:
        return () if self.now_ms is None else (self.now_ms,)


class NotReadyTries:
    """Several calls that belong together, of which a server was not ready for some: nothing was done by those."""

    def __init__(self, patience: float) -> None:
        self._give_up = time.monotonic() + patience
        self._pause = 0.05

    def of(self, replies: Iterable[Any]) -> NotReady | None:
        """The first such reply. Raises the first other error."""
        found = None
        for reply in replies:
            if isinstance(reply, NotReady):
                found = found or reply
            elif isinstance(reply, BaseException):
                raise reply
        return found

    async def wait(self, refused: NotReady, *, is_begun: bool) -> None:
        """Before the next try. When it is too late for one: raises what was said, or, if other calls were executed,
        that a part is done: whoever repeats all of it would do that part twice."""
        if time.monotonic() + self._pause > self._give_up:
            raise StoreError(f"done only in part: {refused}") if is_begun else refused
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(self._pause * 2, 1.0)


def raise_first(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
