"""SessionPartitions: script calls with many rows, one call on a single server, one per partition on a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from veredus.errors import NotReady, StoreError
from veredus.model.backoff import Backoff
from veredus.store.connection.batching import in_batches
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import Script
from veredus.wire import session_keys as keys

Row = TypeVar("Row")
Names = tuple[str, ...]
MAX_ROWS = 256
"""Rows in one call. More would block other clients of the server for too long."""
EMPTIED_MS = 24 * 3600 * 1000
"""How long sweeps keep checking groups that may have no member."""
PATIENCE = 3.0
"""Seconds for which calls are retried if a server was not ready for some of them."""
PLAIN, SHARDED = "p", "s"


class SessionPartitions:
    """One server takes rows of all partitions in one call; a cluster gets one call per partition, all at once."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.one_server = redis.address.kind != "cluster"
        self._channel = PLAIN if self.one_server else ""
        self._asking = asyncio.Lock()

    async def channel(self) -> str:
        """How nodes are notified: with plain pub/sub, or with sharded pub/sub on a cluster that has it."""
        if not self._channel:
            async with self._asking:
                if not self._channel:
                    found = await self.redis.command("COMMAND", "INFO", "SPUBLISH", key=keys.sessions(keys.TAGS[0]))
                    self._channel = SHARDED if found and found[0] else PLAIN
        return self._channel

    async def announce(self, groups: Sequence[str], tag: str, *, before: bool = False) -> None:
        """Record that groups have members in a partition: before a join, so that a crash hides no member, and again
        after it (see `forget_groups`). If the join fails, a later sweep removes the record."""
        rows: list[Sequence[Argument]] = []
        for group in groups:
            rows.append(("SADD", keys.group_partitions(keys.check_name("group", group)), tag))
            if before:
                rows.append(("ZADD", keys.emptied(tag), "NX", 0, group))
        if rows and before:
            rows.append(("PEXPIRE", keys.emptied(tag), EMPTIED_MS))
        await self._command_each(rows)

    async def forget_groups(self, rows: Sequence[tuple[str, str]]) -> None:
        """Remove the partitions (group, tag) that have no members left, then check again: a join writes the member
        first and then the partition, so either the join or this check sees the other."""
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

    async def run(
        self, script: Script, tag: str, args: Sequence[Argument], *rows: Sequence[tuple[Any, ...]], names: Names = ()
    ) -> Any:
        """One call in one partition, with each kind of rows that the script takes. `names` are its keys, if the key of
        the partition's sessions is not the only one."""
        given = script.args((*await self._channel_for(script), *args), *rows)
        return await self.redis.run(script, names or (keys.sessions(tag),), given)

    async def _channel_for(self, script: Script) -> tuple[str, ...]:
        """Scripts that notify nodes take the channel first."""
        return (await self.channel(),) if script.names[:1] == ("channel",) else ()

    async def run_rows(
        self,
        script: Script,
        rows: Sequence[Row],
        tag_of: Callable[[Row], str],
        args_of: Callable[[Row], tuple[Any, ...]],
        size_of: Callable[[Row], int] = lambda row: 0,
        head: Sequence[Argument] = (),
        most: int = MAX_ROWS,
        other_rows: Sequence[Sequence[tuple[Any, ...]]] = (),
    ) -> list[Any]:
        """Returns one reply per row, in the order of the rows. Rows of one session keep their order. Of several calls,
        only those that a server was not ready for are repeated, after the others. `other_rows` are the rows of the
        other kinds, which come first and are part of every call."""
        fixed = (*await self._channel_for(script), *head)
        shares: list[list[int]] = []
        if self.one_server:
            shares.append(list(range(len(rows))))
        else:
            by_tag: dict[str, list[int]] = {}
            for position, row in enumerate(rows):
                by_tag.setdefault(tag_of(row), []).append(position)
            shares.extend(by_tag.values())
        calls: list[tuple[list[int], ScriptCall]] = []
        for share in shares:
            for batch in in_batches(share, lambda position: size_of(rows[position]), most):
                args = script.args(fixed, *other_rows, [args_of(rows[position]) for position in batch])
                calls.append((batch, ScriptCall(script, (keys.sessions(tag_of(rows[batch[0]])),), args)))
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
        self,
        script: Script,
        key_of: Callable[[str], str],
        args_of: Callable[[str], Sequence[Argument]],
        tags: Sequence[str],
    ) -> list[Any]:
        """One call per partition, pipelined. A failed call has its error in place of the reply."""
        channel = await self._channel_for(script)
        return await self.redis.run_each(
            [ScriptCall(script, (key_of(tag),), (*channel, *args_of(tag))) for tag in tags]
        )


class NotReadyTries:
    """Retries of those calls of a group that a server was not ready for, and which therefore did nothing."""

    def __init__(self, patience: float) -> None:
        self._give_up = time.monotonic() + patience
        self._backoff = Backoff()

    def of(self, replies: Iterable[Any]) -> NotReady | None:
        """The first NotReady among the replies. Raises the first other error."""
        found = None
        for reply in replies:
            if isinstance(reply, NotReady):
                found = found or reply
            elif isinstance(reply, BaseException):
                raise reply
        return found

    async def wait(self, refused: NotReady, *, is_begun: bool) -> None:
        """Pause before the next try. When time is up, raises `refused`, or StoreError if other calls were executed,
        because repeating all calls would execute those twice."""
        if time.monotonic() + self._backoff.next > self._give_up:
            raise StoreError(f"done only in part: {refused}") if is_begun else refused
        await asyncio.sleep(self._backoff.take())


def raise_first(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
