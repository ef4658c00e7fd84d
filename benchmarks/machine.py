"""The limits of this machine, for comparison: an awaited PING, scripts in pipelines, a bare event loop."""

from __future__ import annotations

import asyncio
import time

import redis.asyncio

from benchmarks.server import BenchServer


async def awaited_ping(server: BenchServer, seconds: float = 1.0) -> float:
    """Awaited PINGs of redis-py per second: the yardstick that other queues' clients are built on."""
    client = redis.asyncio.Redis(unix_socket_path=server.socket)
    await client.ping()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            await client.ping()
        count += 100
    rate = count / (time.perf_counter() - began)
    await client.aclose()
    return rate


def blocking_ping(server: BenchServer, seconds: float = 1.0) -> float:
    """The same from synchronous code."""
    client = redis.Redis(unix_socket_path=server.socket)
    client.ping()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            client.ping()
        count += 100
    rate = count / (time.perf_counter() - began)
    client.close()
    return rate


def pipelined_scripts(server: BenchServer, rounds: int = 100) -> float:
    """Trivial scripts per second in pipelines of 500: what Redis can do at all."""
    sha = server.client.script_load("return 1")
    began = time.perf_counter()
    for _ in range(rounds):
        pipe = server.client.pipeline(transaction=False)
        for _ in range(500):
            pipe.evalsha(sha, 0)
        pipe.execute()
    return rounds * 500 / (time.perf_counter() - began)


async def bare_loop(count: int = 100_000) -> float:
    """Empty asyncio tasks per second: what Python can do at all."""

    async def nothing() -> None:
        pass

    began = time.perf_counter()
    for _ in range(count // 100):
        await asyncio.gather(*[asyncio.create_task(nothing()) for _ in range(100)])
    return count / (time.perf_counter() - began)
