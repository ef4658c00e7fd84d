"""A time of the test's own for scripts: the only way to give them one."""

from __future__ import annotations

from dataclasses import dataclass

from veredus.store.connection.redis import Redis
from veredus.testing.stage import TimedRedis


@dataclass
class SetTime:
    now_ms: int | None
    """None for the server's own time."""


def at(redis: Redis, now_ms: int | None) -> TimedRedis:
    """This Redis, where it is always that time."""
    return TimedRedis(redis, SetTime(now_ms))
