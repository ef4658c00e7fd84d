"""What the tests of rows share: names of keys, locks, and a handler that fails."""

from __future__ import annotations

from typing import Any

from veredus import Job

SLOW = {"behave": "wait", "ms": 60_000}


def key(name: str, queue: str = "shared") -> str:
    return f"asynq:{{{queue}}}:{name}"


async def locks(client: Any) -> list[bytes]:
    return sorted(await client.keys("asynq:*:unique:*"))


async def now_of(client: Any) -> int:
    return int((await client.time())[0])


async def no_locks(client: Any) -> bool:
    return not await locks(client)


async def fail(job: Job) -> None:
    raise ValueError("told to fail")
