"""Events: what was emitted under a name, and which tasks wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.model.durable import EVENT
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.wire import keys


class WaiterRow(NamedTuple):
    waiter: bytes


EMIT = load("event/emit", keys="event waiters", args="call payload ttl_ms most")
LISTEN = load("event/listen", keys="event waiters", args="waiter ttl_s")
ACK = load("event/ack", keys="event waiters", args="most", rows=WaiterRow)

PAGE = 200
"""Waiting tasks that are notified at once."""
NOTE_SECONDS = 3600
"""How long a note that a task waits is kept; a look renews it at least every five minutes."""


class Waiter(NamedTuple):
    """A task that waits for an event."""

    queue: str
    task_id: str
    mark: str
    field: str

    def pack(self, event: str) -> bytes:
        """Without the event's name: a set whose members have up to 64 bytes takes half of the memory."""
        parts = (self.queue, self.task_id, self.mark, self.field.removeprefix(EVENT + event))
        return "\0".join(parts).encode(errors="surrogateescape")

    @classmethod
    def unpack(cls, event: str, data: bytes) -> Waiter:
        queue, task_id, mark, number = data.decode(errors="surrogateescape").split("\0", 3)
        return cls(queue, task_id, mark, EVENT + event + number)


@dataclass(frozen=True, slots=True)
class Emission:
    """What became of an `emit`."""

    is_first: bool
    payload: bytes
    """What counts: that of the first."""
    waiters: list[bytes]


class Emitted:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def emit(self, name: str, call: str, payload: bytes, ttl_ms: int) -> Emission:
        """Keep it, if it is the first of its name. `call` has 16 characters; repeated with the same, it gets the same
        answer."""
        is_first, waiters, payload = await self._redis.run(EMIT, _keys(name), (call, payload, ttl_ms, PAGE))
        return Emission(bool(is_first), payload, waiters)

    async def ack(self, name: str, waiters: Sequence[bytes]) -> list[bytes]:
        """These have it. Returns some that do not have it yet."""
        rows = [WaiterRow(waiter) for waiter in waiters]
        left: list[bytes] = await self._redis.run(ACK, _keys(name), ACK.args((PAGE,), rows))
        return left

    async def listen(self, name: str, waiter: Waiter) -> bytes | None:
        """The event; None if there is none yet, and then the waiter is noted."""
        found: bytes | None = await self._redis.run(LISTEN, _keys(name), (waiter.pack(name), NOTE_SECONDS))
        return found

    async def listen_each(self, waiters: Sequence[tuple[str, Waiter]]) -> list[bytes | StoreError | None]:
        """The same for many, in one round trip per server."""
        calls = [ScriptCall(LISTEN, _keys(name), (waiter.pack(name), NOTE_SECONDS)) for name, waiter in waiters]
        replies: list[Any] = await self._redis.run_each(calls)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies


def _keys(name: str) -> tuple[str, str]:
    return keys.event(name), keys.waiters(name)
