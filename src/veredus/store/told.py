"""What is to be passed on to clients who follow tasks: written in the step that made it happen, taken out here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from veredus.errors import CommandRefused, StoreError
from veredus.store.places import text
from veredus.store.redis import Redis
from veredus.wire import keys

MOST = 100


class Target(NamedTuple):
    """Who follows: a session, or all sessions of a user."""

    session: str = ""
    user: str = ""

    @property
    def channel(self) -> str:
        """As it stands among those who wait for a task (see lua/include/tell.lua)."""
        return f">s:{self.session}" if self.session else f">u:{quote(self.user, safe='')}"


class Told:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def waiting(self, queues: Sequence[str]) -> dict[str, list[bytes] | CommandRefused]:
        """The oldest records of each queue that has any, or why they cannot be read."""
        replies = await self._redis.command_each([("LRANGE", keys.told(queue), 0, MOST - 1) for queue in queues])
        for reply in replies:
            if isinstance(reply, StoreError) and not isinstance(reply, CommandRefused):
                raise reply
        return {queue: reply for queue, reply in zip(queues, replies, strict=True) if reply}

    async def remove(self, queue: str, record: bytes) -> None:
        """It was passed on. Whoever else passed it on at the same time removes nothing."""
        key = keys.told(queue)
        await self._redis.command("LREM", key, 1, record, key=key)


def read_record(record: bytes) -> tuple[Target, bytes]:
    """Who is to be told, and what: the rest is a message as on a listener's channel."""
    _, channel, rest = record.split(b" ", 2)
    name = text(channel[3:])
    return (Target(session=name) if channel[:3] == b">s:" else Target(user=unquote(name))), rest
