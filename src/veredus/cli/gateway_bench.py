"""`veredus gateway bench`: a load test with pushes, many clients and broken connections."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import click

from veredus.app import App
from veredus.cli.common import echo_json, facts, json_option, plain_app, progress_bar, redis_option
from veredus.errors import GatewayError
from veredus.peer import Message, Peer, connect
from veredus.store.store import Store

TRANSPORTS = ("ws", "quic", "both")


@dataclass(slots=True)
class Result:
    """The figures of one run."""

    transport: str
    clients: int
    size: int
    seconds: float = 0.0
    pushed: int = 0
    delivered: int = 0
    refused: int = 0
    """Pushes refused because the client's log was full."""
    missing: int = 0
    out_of_order: int = 0
    copies: int = 0
    """Messages sent again after a reconnect, which the client dropped."""
    cuts: int = 0
    connections: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    load_cpu: float = 0.0
    """Share of a core used by the clients and the producer in this process."""
    gateway_cpu: float | None = None
    latencies: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["latencies"]
        per_second = self.delivered / self.seconds if self.seconds else 0.0
        return {**values, "delivered_per_second": round(per_second, 1)}


@click.command("bench")
@redis_option
@json_option
@click.option("--clients", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Clients at once.")
@click.option("--rate", type=click.FloatRange(1), default=2000.0, show_default=True, help="Pushes per second in total.")
@click.option("--size", type=click.IntRange(40, 60_000), default=200, show_default=True, help="Bytes per message.")
@click.option("--seconds", type=click.FloatRange(0.5), default=10.0, show_default=True, help="How long to push.")
@click.option("--cut", type=click.FloatRange(0), default=0.0, help="Connections cut per second and client.")
@click.option("--transport", type=click.Choice(TRANSPORTS), default="ws", show_default=True)
@click.option("--url", multiple=True, help="A running gateway on the same Redis (default: start one).")
@click.option("--token", default="", help="The clients' token.")
def bench(redis_url: str | None, as_json: bool, url: tuple[str, ...], **settings: Any) -> int:
    """Load test a gateway: ordered pushes to many clients, while connections are cut at random.

    Exits with 1 if a message was lost or out of order.

    \b
    Example:
      veredus gateway bench --clients 50 --rate 5000 --transport both
    """
    app = plain_app(redis_url)
    with progress_bar("pushing") as show:
        result = asyncio.run(_with_gateway(app, list(url), settings, show))
    if as_json:
        echo_json(result.as_dict())
    else:
        facts([(name.replace("_", " "), value) for name, value in result.as_dict().items() if value is not None])
    return 1 if result.missing or result.out_of_order else 0


Show = Callable[[int, int], None]


async def _with_gateway(app: App, urls: list[str], settings: dict[str, Any], show: Show) -> Result:
    if urls:
        return await _run(app, urls, settings, show)
    if app.url is None:
        async with app:  # start the embedded server before the child needs it
            pass
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(app.url,), daemon=True)
    child.start()
    try:
        wanted = settings["transport"]
        urls = await _urls(app, child, ("ws", "quic") if wanted == "both" else (wanted,))
        result = await _run(app, urls, settings, show, child.pid)
    finally:
        child.terminate()
        await asyncio.to_thread(child.join, 10)
    return result


def serve(url: str | None) -> None:
    """The gateway's process, on ports that the system chooses."""
    app = App(url) if url else App()
    app.gateway(ws="127.0.0.1:0", quic="127.0.0.1:0", http="off", drain=0.1, accept_rate=1e6).run()


async def _urls(app: App, child: BaseProcess, transports: tuple[str, ...]) -> list[str]:
    """Where the child serves, as soon as its record in Redis says so."""
    store = Store(app.open_redis("veredus-cli"))
    here = {"host": socket.gethostname(), "pid": child.pid}
    try:
        while child.is_alive():
            for node in (await store.nodes.nodes()).values():
                if here.items() <= node.info.items() and node.info["ws"]:
                    return [f"{transport}://{node.info[transport]}" for transport in transports]
            await asyncio.sleep(0.02)
    finally:
        await store.close()
    raise GatewayError(f"the gateway of this command ended with code {child.exitcode} before it served")


async def _run(app: App, urls: list[str], settings: dict[str, Any], show: Show, pid: int | None = None) -> Result:
    result = Result(settings["transport"], settings["clients"], settings["size"])
    readers = [_Reader() for _ in range(settings["clients"])]
    async with app:
        for number, reader in enumerate(readers):
            try:
                reader.peer = await connect(
                    [urls[number % len(urls)]],
                    token=settings["token"],
                    on_message=reader.read,
                    connect_timeout=20,
                    backoff_base=0.05,
                    backoff_max=1.0,
                )
            except OSError as exc:
                raise GatewayError(f"client {number} cannot connect to {urls[number % len(urls)]}: {exc}") from exc
        before, used = _cpu(pid), time.process_time()
        began = time.monotonic()
        await _push(app, readers, result, settings, show)
        await _settle(readers)
        result.seconds = time.monotonic() - began
        result.load_cpu = round((time.process_time() - used) / result.seconds, 2)
        after = _cpu(pid)
        if before is not None and after is not None:
            result.gateway_cpu = round((after - before) / result.seconds, 2)
        for reader in readers:
            reader.add_to(result)
            await reader.peer.close()
    result.latencies.sort()
    if result.latencies:
        count = len(result.latencies)
        result.p50_ms = round(result.latencies[count // 2] * 1000, 2)
        result.p99_ms = round(result.latencies[min(count - 1, count * 99 // 100)] * 1000, 2)
        result.max_ms = round(result.latencies[-1] * 1000, 2)
    return result


class _Reader:
    """One client and the messages it received."""

    def __init__(self) -> None:
        self.peer: Peer
        self.accepted = 0
        self.last = -1
        self.read_count = 0
        self.out_of_order = 0
        self.latencies: list[float] = []

    def read(self, item: Any) -> None:
        if not isinstance(item, Message):
            self.out_of_order += 1
            return
        self.read_count += 1
        data = item.data
        self.latencies.append(time.time() - data["at"])
        if item.seq <= self.last:
            self.out_of_order += 1
        self.last = item.seq

    def add_to(self, result: Result) -> None:
        stats = self.peer.stats()
        result.delivered += self.read_count
        result.missing += self.accepted - self.read_count
        result.out_of_order += self.out_of_order
        result.copies += stats["duplicates"]
        result.connections += stats["connections"]
        result.latencies += self.latencies


async def _push(app: App, readers: list[_Reader], result: Result, settings: dict[str, Any], show: Show) -> None:
    total = round(settings["rate"] * settings["seconds"])
    filler = "x" * (settings["size"] - 30)
    began = time.monotonic()
    pending: set[asyncio.Task[None]] = set()
    cuts = asyncio.create_task(_cut(readers, settings["cut"], result))

    async def one(reader: _Reader) -> None:
        answer = await app.push({"at": time.time(), "x": filler}, session=reader.peer.session)
        if getattr(answer, "ok", False):
            reader.accepted += 1
            result.pushed += 1
        else:
            result.refused += 1

    for number in range(total):
        ahead = began + number / settings["rate"] - time.monotonic()
        if ahead > 0.001:
            show(number, total)
            await asyncio.sleep(ahead)
        task = asyncio.create_task(one(readers[number % len(readers)]))
        pending.add(task)
        task.add_done_callback(pending.discard)
        if len(pending) > 5000:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    if pending:
        await asyncio.wait(pending)
    cuts.cancel()


async def _cut(readers: list[_Reader], per_second: float, result: Result) -> None:
    if not per_second:
        return
    while True:
        await asyncio.sleep(random.expovariate(per_second * len(readers)))
        random.choice(readers).peer.cut()
        result.cuts += 1


async def _settle(readers: list[_Reader]) -> None:
    """Wait for all accepted pushes. Messages that do not arrive within 15 s without progress count as missing."""
    last, since = -1, time.monotonic()
    while any(reader.read_count < reader.accepted for reader in readers):
        now = sum(reader.read_count for reader in readers)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 15:
            return
        await asyncio.sleep(0.01)


def _cpu(pid: int | None) -> float | None:
    """CPU seconds of a process, on systems with /proc."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
