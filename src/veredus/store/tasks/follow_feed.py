"""The feed for clients who follow tasks: scripts write records in the step in which something happens; workers take
them out here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from veredus.errors import CommandRefused, StoreError
from veredus.store.connection.redis import Redis
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys

MOST = 100


class FollowTarget(NamedTuple):
    """The follower: a session, or all sessions of a user."""

    session: str = ""
    user: str = ""

    @property
    def channel(self) -> str:
        """The form of a follower in the list of a task's waiters (see lua/include/notify_waiters.lua)."""
        return f">s:{self.session}" if self.session else f">u:{quote(self.user, safe='')}"


class FollowFeed:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def waiting(self, queues: Sequence[str]) -> dict[str, list[bytes] | CommandRefused]:
        """The oldest records of each queue that has any, or the error of the read."""
        replies = await self._redis.command_each([("LRANGE", keys.told(queue), 0, MOST - 1) for queue in queues])
        for reply in replies:
            if isinstance(reply, StoreError) and not isinstance(reply, CommandRefused):
                raise reply
        return {queue: reply for queue, reply in zip(queues, replies, strict=True) if reply}

    async def remove(self, queue: str, record: bytes) -> None:
        """Remove a record that was sent. If another worker removed it at the same time, nothing happens."""
        key = keys.told(queue)
        await self._redis.command("LREM", key, 1, record, key=key)


def read_record(record: bytes) -> tuple[FollowTarget, bytes]:
    """The receiver and the content of a record; the content is a message as on a listener's channel."""
    _, channel, rest = record.split(b" ", 2)
    name = text(channel[3:])
    return (FollowTarget(session=name) if channel[:3] == b">s:" else FollowTarget(user=unquote(name))), rest
