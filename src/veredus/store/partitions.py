"""Script calls of many rows: one call on one server, one per partition on a cluster; and how nodes are told there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from veredus.errors import StoreError
from veredus.store.batching import in_batches
from veredus.store.connection import Argument
from veredus.store.redis import Call, Redis
from veredus.store.scripts import Script
from veredus.wire import session_keys as keys

Row = TypeVar("Row")
MAX_ROWS = 256
"""More in one script would hold up everybody else on the server."""
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

    async def forget_group(self, group: str, tag: str) -> None:
        """Nobody of the group is left in this partition. Looked at again afterwards: whoever joins writes the member
        first, then the partition once more, so one of us sees the other."""
        place, members = keys.group_partitions(group), keys.group(tag, group)
        await self.redis.command("SREM", place, tag, key=place)
        if await self.redis.command("EXISTS", members, key=members):
            await self.redis.command("SADD", place, tag, key=place)

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
        """One reply per row, in the order of the rows; rows of one session are taken in their order."""
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
        for (batch, _), answers in zip(calls, await self.redis.run_each([call for _, call in calls]), strict=True):
            if isinstance(answers, BaseException):
                raise answers
            for position, answer in zip(batch, answers, strict=True):
                replies[position] = answer
        return replies

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


def raise_first(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
