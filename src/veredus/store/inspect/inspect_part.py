"""Base class of the inspector's store modules. All inspect scripts take a queue's containers in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import Script
from veredus.wire import keys

CONTAINERS = "pending active lease scheduled retry archived completed due groups aggregation_sets"
_MAKERS = tuple(getattr(keys, name) for name in CONTAINERS.split())


class Seen(NamedTuple):
    """A task of a call, and its position in pending counted from the tail, or empty if unknown."""

    task_id: bytes
    seen_at: int | str


class TaskId(NamedTuple):
    task_id: bytes


def containers(queue: str) -> list[str]:
    return [make(queue) for make in _MAKERS]


class InspectPart:
    """Runs inspect scripts."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    async def run_in(
        self,
        queue: str,
        script: Script,
        args: Sequence[Argument] = (),
        *rows: Sequence[tuple[Any, ...]],
        more_keys: Sequence[str] = (),
    ) -> Any:
        """Run a script on the containers of a queue."""
        given = script.args((keys.queue_prefix(queue), *args), *rows)
        return await self.redis.run(script, [*containers(queue), *more_keys], given)

    async def run_in_each(
        self, queues: Sequence[str], script: Script, args: Sequence[Argument], *more_keys: Callable[[str], str]
    ) -> list[Any]:
        """The same for many queues, in one round trip per server; raises the first error."""
        calls = [
            ScriptCall(
                script,
                [*containers(queue), *[make(queue) for make in more_keys]],
                [keys.queue_prefix(queue), *args],
            )
            for queue in queues
        ]
        return raise_first_error(await self.redis.run_each(calls))

    async def server_ms(self, route: str = "") -> int:
        """The time of Redis; in a cluster, of the node that has this key."""
        seconds, micros = await self.redis.command("TIME", key=route)
        return int(seconds) * 1000 + int(micros) // 1000


def raise_first_error(replies: list[Any]) -> list[Any]:
    """Return the replies of several calls, or raise the first error among them."""
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies


def text(data: bytes) -> str:
    """Decode a name. Invalid UTF-8 survives a round trip with `data`."""
    return data.decode("utf-8", "surrogateescape")


def data(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
