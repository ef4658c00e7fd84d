"""The gateway beside the bare libraries: delivered and acknowledged messages, latency, replay, memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.server import BenchServer, process_cpu, resident_mb
from veredus import App
from veredus.peer import connect

CLIENTS = 50


class Throughput(NamedTuple):
    rate: float
    cpu_us: float
    """CPU of the pushing process per message."""
    load: str
    """Who made the load, and what it used of a core."""
    disorder: int = 0
    resident_mb: float = 0.0
    """Of the pushing process."""


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(*command: str, pipe: bool = False) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE if pipe else subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def gateway(
    server: BenchServer, app: str = "benchmarks.tasks:app", *flags: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """One gateway process, and its ports."""
    os.environ["VEREDUS_REDIS_URL"] = server.url
    ports = {"ws": free_port(), "quic": free_port(socket.SOCK_DGRAM)}
    where = ("--ws", f"127.0.0.1:{ports['ws']}", "--quic", f"127.0.0.1:{ports['quic']}", "--http", "off")
    limits = ("--drain", "0.1", "--accept-rate", "100000", "--log-level", "error")
    with running("veredus", "gateway", app, *where, *limits, *flags) as process:
        _wait_for(ports["ws"])
        yield process, ports


def _wait_for(port: int) -> None:
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on {port}")


def bare(kind: str, seconds: float) -> Throughput:
    """What the library alone pushes to as many readers."""
    port = free_port(socket.SOCK_STREAM if kind == "ws" else socket.SOCK_DGRAM)
    with running("benchmarks.gateway_roles", f"bare-{kind}", str(port), str(CLIENTS)) as pusher:
        if kind == "ws":
            _wait_for(port)
        else:
            time.sleep(1.0)
        return _read(kind, port, "bare", seconds, pusher.pid)


def delivered(server: BenchServer, kind: str, seconds: float) -> Throughput:
    """Numbered, stored, delivered in order and acknowledged, through one gateway process."""
    server.flush()
    with gateway(server) as (process, ports):
        return _read(kind, ports[kind], "gateway", seconds, process.pid, server.url)


def _read(kind: str, port: int, what: str, seconds: float, pid: int, url: str = "") -> Throughput:
    arguments = ("read", kind, str(port), str(CLIENTS), what, str(seconds))
    with running("benchmarks.gateway_roles", *arguments, pipe=True) as reader:
        assert reader.stdout is not None
        sids = json.loads(reader.stdout.readline())
        producers = []
        if url:
            command = [sys.executable, "-m", "benchmarks.gateway_roles", "produce", url, str(seconds + 2), *sids]
            producers = [subprocess.Popen(command) for _ in range(2)]
        time.sleep(0.5)
        before, began = process_cpu(pid), time.perf_counter()
        seen = json.loads(reader.stdout.readline())
        used, took = process_cpu(pid) - before, time.perf_counter() - began
        resident = resident_mb(pid)
        for producer in producers:
            producer.wait()
    load = f"{CLIENTS} lean readers {seen['cpu']:.0%}" + (", 2 producers" if url else "")
    return Throughput(seen["rate"], used / took / max(seen["rate"], 1) * 1e6, load, seen["disorder"], resident)


async def latency(server: BenchServer, kind: str, rate: int = 1000, seconds: float = 4.0) -> list[float]:
    """From the call of push to the client's callback, in ms, sorted."""
    server.flush()
    with gateway(server) as (_, ports):
        app = App(server.url)
        found: list[float] = []

        def read(item: Any) -> None:
            found.append((time.perf_counter() - item.data) * 1000)

        peers = [await connect(f"{kind}://127.0.0.1:{ports[kind]}", token=f"u{n}", on_message=read) for n in range(10)]
        began, pushes = time.perf_counter(), []
        for number in range(round(rate * seconds)):
            ahead = began + number / rate - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            pushes.append(asyncio.create_task(app.push(time.perf_counter(), session=peers[number % 10].session)))
        await asyncio.gather(*pushes)
        while len(found) < len(pushes):
            await asyncio.sleep(0.01)
        for peer in peers:
            await peer.close()
        await app.close()
    return sorted(found)


async def replay(server: BenchServer, kind: str, missed: int = 1000) -> float:
    """ms from the first packet of a reconnect to the last of so many missed messages; the median of five."""
    times = []
    with gateway(server) as (_, ports):
        app = App(server.url)
        url = f"{kind}://127.0.0.1:{ports[kind]}"
        for _ in range(5):
            peer = await connect(url, token="ada")
            await peer.detach()
            saved, left, done = peer.export(), missed, asyncio.Event()
            for _ in range(missed // 100):
                await asyncio.gather(*[app.push("x" * 180, session=saved.session) for _ in range(100)])

            def read(item: Any, done: asyncio.Event = done) -> None:
                nonlocal left
                left -= 1
                if not left:
                    done.set()

            began = time.perf_counter()
            again = await connect(url, token="ada", resume=saved, on_message=read)
            await done.wait()
            times.append((time.perf_counter() - began) * 1000)
            await again.close()
        await app.close()
    return sorted(times)[2]


async def idle_kb(server: BenchServer, connections: int = 500) -> float:
    """Resident memory of the gateway per idle WebSocket connection."""
    from benchmarks.gateway_roles import Reader
    from veredus.link.transports.websocket import connect_websocket

    async def one(port: int) -> Any:
        reader = Reader(False)
        transport = await connect_websocket(f"ws://127.0.0.1:{port}/", reader)
        await reader.ready
        return transport

    with gateway(server) as (process, ports):
        kept = [await one(ports["ws"]) for _ in range(50)]
        before = resident_mb(process.pid)
        kept += [await one(ports["ws"]) for _ in range(connections)]
        await asyncio.sleep(0.5)
        per = (resident_mb(process.pid) - before) * 1000 / connections
        for transport in kept:
            transport.abort()
        await asyncio.sleep(0.1)
    return per
