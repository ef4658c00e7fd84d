"""The containers of one queue, in the order in which all inspecting scripts take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from veredus.store.connection import Argument
from veredus.store.redis import Call, Redis
from veredus.store.scripts import Script
from veredus.wire import keys

CONTAINERS = "pending active lease scheduled retry archived completed due groups aggregation_sets"
_MAKERS = tuple(getattr(keys, name) for name in CONTAINERS.split())


def containers(queue: str) -> list[str]:
    return [make(queue) for make in _MAKERS]


class Part:
    """What the inspecting parts of the store share. `now_ms` is the time that scripts are told, in tests."""

    def __init__(self, redis: Redis, *, now_ms: int | None = None) -> None:
        self.redis = redis
        self.now_ms = now_ms

    async def run_in(
        self, queue: str, script: Script, args: Sequence[Argument] = (), more_keys: Sequence[str] = ()
    ) -> Any:
        """Run a script on the containers of a queue."""
        return await self.redis.run(
            script, [*containers(queue), *more_keys], self.timed([keys.queue_prefix(queue), *args])
        )

    async def run_in_each(
        self, queues: Sequence[str], script: Script, args: Sequence[Argument], *more_keys: Callable[[str], str]
    ) -> list[Any]:
        """The same for many queues, in one round trip per server; raises the first error."""
        calls = [
            Call(
                script,
                [*containers(queue), *[make(queue) for make in more_keys]],
                self.timed([keys.queue_prefix(queue), *args]),
            )
            for queue in queues
        ]
        return sound(await self.redis.run_each(calls))

    def timed(self, args: Sequence[Argument]) -> list[Argument]:
        return [*args] if self.now_ms is None else [*args, self.now_ms]

    async def server_ms(self, route: str = "") -> int:
        """Redis's own time; in a cluster, that of the node that has this key."""
        if self.now_ms is not None:
            return self.now_ms
        seconds, micros = await self.redis.command("TIME", key=route)
        return int(seconds) * 1000 + int(micros) // 1000


def sound(replies: list[Any]) -> list[Any]:
    """The replies of a fan-out, or the first error among them."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies


def text(data: bytes) -> str:
    """Names as text; damaged ones survive the way there and back, see `data`."""
    return data.decode("utf-8", "surrogateescape")


def data(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
