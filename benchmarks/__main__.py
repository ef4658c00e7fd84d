"""`make bench`: measure everything beside the limits of this machine, and show table, JSON and picture."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import drain, enqueue, gateway, latency, machine, scale, socketio
from benchmarks.report import Report, bar_chart
from benchmarks.server import BenchServer, bench_server

ARTIFACTS = Path("artifacts")


async def measure(server: BenchServer, report: Report, console: Console, *, quick: bool) -> None:
    from benchmarks.tasks import app

    many = 20_000 if quick else 50_000
    with console.status("the limits of this machine"):
        ping = await machine.awaited_ping(server)
        report.add("machine", "awaited PING (redis-py)", ping, "/s")
        report.add("machine", "trivial scripts, pipelined", machine.pipelined_scripts(server), "/s")
        report.add("machine", "empty asyncio tasks", await machine.bare_loop(), "/s")
    async with app:
        for name, rate, aim in (
            ("one at a time", await _said(console, "enqueue", enqueue.one_at_a_time(many // 5)), 0.8),
            ("50 coroutines", await _said(console, "enqueue", enqueue.from_coroutines(many)), 4),
            ("enqueue_many", await _said(console, "enqueue", enqueue.in_one_call(many)), 9),
        ):
            report.add("enqueue", name, rate, "/s", f"{rate / ping:.1f} x PING", f">= {aim} x PING")
        rate = await asyncio.to_thread(enqueue.synchronously, many // 10)
        report.add("enqueue", "enqueue_sync", rate, "/s", f"{rate / ping:.1f} x PING")
        await _measure_latency(server, report, console)
        await _measure_drain(server, report, console, ping, many, quick=quick)
        await _measure_scale(server, report, console, quick=quick)
        await _measure_gateway(server, report, console, quick=quick)
    report.add("weight", "import veredus", _import_ms(), "ms", "", "<= 150")


async def _measure_drain(
    server: BenchServer, report: Report, console: Console, ping: float, many: int, *, quick: bool
) -> None:
    one = await _said(console, "drain, one process", drain.drain(server, many * 2))
    aim = 33_000 * ping / 6_300
    report.add("drain", "one process", one.rate, "/s", f"{one.rate / aim * 3:.1f} x Go Asynq (scaled)", ">= 3 x")
    report.add("drain", "worker CPU per task", one.worker_us, "us", "", "<= 25")
    report.add("drain", "Redis CPU per task", one.redis_us, "us", "", "<= 12")
    with server.without_log():
        plain = await _said(console, "drain, no append-only file", drain.drain(server, many * 2))
    cost = f"Redis {plain.redis_us:.1f} us, worker {plain.worker_us:.1f} us"
    remark = f"{plain.rate / aim * 3:.1f} x Go Asynq (scaled); {cost}"
    report.add("drain", "one process, no append-only file", plain.rate, "/s", remark)
    two = await _said(console, "drain, two processes", drain.drain(server, many * 2, 2))
    remark = f"{two.rate / one.rate:.2f} x one, Redis at {two.redis_load:.0%}"
    report.add("drain", "two processes", two.rate, "/s", remark, ">= 1.3 x or Redis >= 85 %")
    deep = 100_000 if quick else 1_000_000
    small = await _said(console, "drain, 20,000 pending", drain.drain(server, 20_000))
    first, last = 20_000 / deep, 100_000 / deep if deep > 100_000 else 0.9
    large = await _said(console, f"drain, {deep:,} pending", drain.drain(server, deep, first=first, last=last))
    report.add("drain", "20,000 pending", small.rate, "/s")
    report.add("drain", f"{deep:,} pending", large.rate, "/s", f"{large.rate / small.rate:.2f} x 20,000", ">= 0.9 x")


async def _measure_latency(server: BenchServer, report: Report, console: Console) -> None:
    for name, values, aim in (
        ("pick-up", await _said(console, "pick-up", latency.pick_up(server)), (2, 6)),
        ("pick-up of a plain LPUSH", await _said(console, "pick-up", latency.pick_up_from_go(server)), (None, 20)),
        ("lateness", await _said(console, "lateness", latency.lateness(server)), (3, 10)),
    ):
        middle, high = values[len(values) // 2], values[int(len(values) * 0.99)]
        report.add("latency", f"{name} p50", middle, "ms", f"min {values[0]:.2f}", f"<= {aim[0]}" if aim[0] else "")
        report.add("latency", f"{name} p99", high, "ms", f"max {values[-1]:.2f}", f"<= {aim[1]}")
    idle = await _said(console, "idling", latency.idle(server))
    report.add("idle", "client calls", idle["calls_per_second"], "/s", "", "<= 2")
    report.add("idle", "worker CPU", idle["cpu_percent"], "%")
    report.add("idle", "worker memory", idle["resident_mb"], "MB", "", "<= 60")


async def _measure_scale(server: BenchServer, report: Report, console: Console, *, quick: bool) -> None:
    few = await _said(console, "settling", scale.settle_cost(server, 50, shuffled=False))
    many = await _said(console, "settling", scale.settle_cost(server, 5_000, shuffled=False))
    mixed = await _said(console, "settling", scale.settle_cost(server, 5_000, shuffled=True))
    report.add("settle", "50 active, in order", few, "us Redis")
    report.add("settle", "5,000 active, in order", many, "us Redis", f"{many / few:.2f} x", "<= 2 x")
    report.add("settle", "5,000 active, random order", mixed, "us Redis", "", "<= 60")
    ours, go = await _said(console, "memory", scale.memory_per_task(server))
    report.add("memory", "per pending task", ours, "bytes", f"{ours / go:.3f} x as Go writes it", "<= 1 x")


async def _measure_gateway(server: BenchServer, report: Report, console: Console, *, quick: bool) -> None:
    seconds = 3.0 if quick else 6.0
    for kind, library, aim in (("ws", "picows", 40_000), ("quic", "aioquic", 15_000)):
        alone = await _said(console, f"bare {library}", asyncio.to_thread(gateway.bare, kind, seconds))
        ours = await _said(console, f"gateway, {kind}", asyncio.to_thread(gateway.delivered, server, kind, seconds))
        report.add("gateway", f"bare {library}, one write per message", alone.rate, "/s", alone.load)
        remark = f"{ours.rate / alone.rate:.2f} x bare; {ours.load}"
        report.add("gateway", f"{kind} delivered and acknowledged", ours.rate, "/s", remark, f">= 0.2 x bare, {aim:,}")
        report.add("gateway", f"{kind} gateway CPU per message", ours.cpu_us, "us")
        found = await _said(console, f"push latency, {kind}", gateway.latency(server, kind))
        middle, high = found[len(found) // 2], found[int(len(found) * 0.99)]
        report.add("gateway", f"{kind} push latency p50", middle, "ms", "1,000/s", "<= 3")
        report.add("gateway", f"{kind} push latency p99", high, "ms", f"max {found[-1]:.1f}", "<= 15")
        missed = await _said(console, f"replay, {kind}", gateway.replay(server, kind))
        report.add("gateway", f"{kind} replay of 1,000 missed", missed, "ms", "", "<= 150")
    memory = await _said(console, "idle connections", gateway.idle_kb(server))
    report.add("gateway", "memory per idle WebSocket", memory, "kB", "", "<= 60")
    if await _said(console, "installing Socket.IO", asyncio.to_thread(socketio.available)):
        ports = gateway.free_port(), gateway.free_port()
        rate, cpu = await _said(console, "Socket.IO", asyncio.to_thread(socketio.delivered, *ports, seconds))
        report.add("gateway", "Socket.IO, Redis streams adapter", rate, "/s", f"unacknowledged; {cpu:.0f} us CPU each")


async def _said(console: Console, what: str, work: object) -> object:
    with console.status(what):
        return await work  # type: ignore[misc]


def _import_ms() -> float:
    best = 1e9
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import veredus; veredus.App"], check=True)
        total = time.perf_counter() - began
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        best = min(best, total - (time.perf_counter() - began))
    return best * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, about half a minute")
    arguments = parser.parse_args()
    logging.getLogger("veredus").setLevel(logging.ERROR)
    console, report = Console(), Report()
    with bench_server() as server:
        os.environ["VEREDUS_REDIS_URL"] = server.url
        try:
            import uvloop

            factory = uvloop.new_event_loop
        except ImportError:
            factory = None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(measure(server, report, console, quick=arguments.quick))
    report.print(console, "Veredus, and the limits of this machine in the same run")
    report.save(ARTIFACTS, "bench")
    bars = [(row["name"], row["value"]) for row in report.rows if row["group"] == "machine"]
    bars += [(f"Veredus {row['group']}: {row['name']}", row["value"]) for row in report.rows
             if row["group"] in ("enqueue", "drain") and row["unit"] == "/s"]  # fmt: skip
    bar_chart(ARTIFACTS / "bench.svg", "Operations per second on this machine", bars, "/s")
    console.print(f"saved: {ARTIFACTS / 'bench.json'}, {ARTIFACTS / 'bench.svg'}", highlight=False)


if __name__ == "__main__":
    main()
