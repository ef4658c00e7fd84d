"""`python -m benchmarks.capacity`: what one gateway process carries: idle clients, messages, requests, and memory.

Clients, Redis and, for requests that become tasks, a worker run on the same machine: the rate is what all of them reach
together, CPU is what the gateway's process used."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from benchmarks.gateway import CLIENTS, delivered, gateway, running
from benchmarks.gateway_roles import Reader
from benchmarks.server import BenchServer, bench_server, process_cpu, resident_mb
from veredus import App
from veredus.link.transports.websocket import connect_websocket
from veredus.peer import Peer, connect

app = App()
UNLIMITED = ("--request-rate", "1000000", "--request-burst", "1000000", "--max-request-rate", "1000000")
OPEN = 16
"""Unanswered requests of one client."""


@app.action("here", where="gateway")
async def here(n: int) -> int:
    return n


@app.action("there")
async def there(n: int) -> int:
    return n


class Asked(NamedTuple):
    rate: float
    cpu_us: float
    """Of the gateway's process per request."""
    resident_mb: float


class Idle(NamedTuple):
    kb: float
    """Of the gateway's process per client."""
    cpu: float
    """Of a core."""


async def requests(server: BenchServer, action: str, seconds: float) -> Asked:
    """Requests sent and answered, by 50 clients over WebSocket."""
    async with AsyncExitStack() as stack:
        process, ports = stack.enter_context(_gateway(server))
        pid = process.pid
        if action == "there":
            stack.enter_context(running("veredus", "worker", "benchmarks.capacity:app", "--log-level", "error"))
        url = f"ws://127.0.0.1:{ports['ws']}"
        peers = [await stack.enter_async_context(_peer(url, n)) for n in range(CLIENTS)]
        await peers[0].request(action, {"n": 0})
        count, over = 0, asyncio.Event()

        async def ask(peer: Peer) -> None:
            nonlocal count
            while not over.is_set():
                await peer.request(action, {"n": count})
                count += 1

        asking = [asyncio.create_task(ask(peer)) for peer in peers for _ in range(OPEN)]
        await asyncio.sleep(1.0)
        before, used, began = count, process_cpu(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        done, took = count - before, time.perf_counter() - began
        cpu, resident = process_cpu(pid) - used, resident_mb(pid)
        over.set()
        await asyncio.gather(*asking)
        return Asked(done / took, cpu / done * 1e6, resident)


async def idle(server: BenchServer, clients: int, seconds: float) -> Idle:
    """Clients over WebSocket that answer pings and nothing else."""
    with _gateway(server) as (process, ports):
        pid = process.pid
        kept: list[Any] = []

        async def come(number: int) -> None:
            for _ in range(number):
                reader = Reader(False)
                kept.append(await connect_websocket(f"ws://127.0.0.1:{ports['ws']}/", reader))
                await reader.ready

        await come(50)
        before = resident_mb(pid)
        await asyncio.gather(*[come(clients // 20) for _ in range(20)])
        await asyncio.sleep(1.0)
        kb = (resident_mb(pid) - before) * 1000 / (len(kept) - 50)
        used = process_cpu(pid)
        await asyncio.sleep(seconds)
        cpu = (process_cpu(pid) - used) / seconds
        for transport in kept:
            transport.abort()
        await asyncio.sleep(0.1)
        return Idle(kb, cpu)


def _gateway(server: BenchServer) -> Any:
    server.flush()
    return gateway(server, "benchmarks.capacity:app", *UNLIMITED)


@asynccontextmanager
async def _peer(url: str, number: int) -> AsyncIterator[Peer]:
    peer = await connect(url, token=f"u{number}")
    try:
        yield peer
    finally:
        await peer.close()


async def main(clients: int, seconds: float) -> None:
    with bench_server() as server:
        quiet = await idle(server, clients, max(seconds, 30.0))
        print(f"{clients} idle clients: {quiet.kb:.0f} kB of memory each, {quiet.cpu:.1%} of a core")
        for kind, name in (("ws", "WebSocket"), ("quic", "QUIC")):
            sent = delivered(server, kind, seconds)
            print(
                f"messages over {name}, delivered and acknowledged: {sent.rate:,.0f}/s, {sent.cpu_us:.1f} µs of CPU of "
                f"the gateway each, {sent.resident_mb:.0f} MB"
            )
        for action, what in (("here", "answered in the gateway"), ("there", "answered by a worker")):
            asked = await requests(server, action, seconds)
            print(
                f"requests {what}: {asked.rate:,.0f}/s, {asked.cpu_us:.0f} µs of CPU of the gateway each, "
                f"{asked.resident_mb:.0f} MB"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    asyncio.run(main(asked.clients, asked.seconds))
