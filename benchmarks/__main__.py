"""`make bench`: measure everything beside the limits of this machine, and show table, JSON and picture."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks import drain, durable, enqueue, gateway, latency, machine, scale, socketio
from benchmarks.drain import Drain
from benchmarks.fleet_parts import FleetParts, at_place
from benchmarks.report import Report, bar_chart
from benchmarks.server import BenchServer, bench_server

T = TypeVar("T")

ARTIFACTS = Path("artifacts")
Ping = Callable[[BenchServer, float], Awaitable[float]]
PARTS = (
    "enqueue", "latency", "drain", "processes", "statistics", "scale", "growth",
    "idle_workers", "heartbeats", "mass_due", "kills", "many_queues",
    "durable", "gateway", "weight",
)  # fmt: skip


class Bench(FleetParts):
    """One run. Machines are noisy: what is compared with PING is measured in turns with it, and the median counts."""

    def __init__(
        self, server: BenchServer, report: Report, console: Console, *, quick: bool, parts: Sequence[str] = PARTS
    ) -> None:
        super().__init__(server, report, console, quick=quick)
        self.parts = parts
        self.many = 20_000 if quick else 50_000
        self.pings: list[float] = []

    async def beside_ping(
        self, what: str, measure: Callable[[], Awaitable[T]], ping: Ping = machine.awaited_ping
    ) -> list[tuple[float, T]]:
        """Several rounds of it, each with the PINGs per second of that very moment."""
        found = []
        with self.console.status(what):
            for _ in range(self.rounds):
                before = await ping(self.server, 0.4)
                result = await measure()
                rate = (before + await ping(self.server, 0.4)) / 2
                if ping is machine.awaited_ping:
                    self.pings.append(rate)
                found.append((rate, result))
        return found

    async def run(self) -> None:
        from benchmarks.tasks import app

        self.report.add("machine", "awaited PING (redis-py)", 0, "/s")
        with self.console.status("the limits of this machine"):
            self.report.add("machine", "trivial scripts, pipelined", machine.pipelined_scripts(self.server), "/s")
            self.report.add("machine", "empty asyncio tasks", await machine.bare_loop(), "/s")
        self.pings.append(await machine.awaited_ping(self.server, 0.4))
        async with app:
            for part in PARTS:
                if part in self.parts:
                    await getattr(self, part)()
        self.report.rows[0]["value"] = statistics.median(self.pings)

    async def weight(self) -> None:
        self.report.add("weight", "import veredus", _import_ms(), "ms", "", "<= 150")

    async def enqueue(self) -> None:
        awaited, blocking = machine.awaited_ping, functools.partial(_in_thread, machine.blocking_ping)
        for name, measure, count, ping, aims in (
            ("one at a time", enqueue.one_at_a_time, self.many // 5, awaited, (0.9, None)),
            ("50 coroutines", enqueue.from_coroutines, self.many, awaited, (6, None)),
            ("enqueue_many", enqueue.in_one_call, self.many * 2, awaited, (11, 7)),
            ("enqueue_many, app.call", enqueue.of_any_type, self.many * 2, awaited, (None, 9)),
            ("enqueue_sync", enqueue.from_a_thread, self.many // 5, blocking, (0.9, None)),
        ):
            costs: list[tuple[float, float]] = []
            found = await self.beside_ping("enqueue", functools.partial(self._with_cpu, measure, count, costs), ping)
            ratio, rate = _middle([(rate / pings, rate) for pings, rate in found])
            client_us, redis_us = (statistics.median(cost[place] for cost in costs) for place in (0, 1))
            beside = "PING" if ping is awaited else "blocking PING"
            aim = f">= {aims[0]} x {beside}" if aims[0] is not None else ""
            self.report.add("enqueue", name, rate, "/s", f"{ratio:.2f} x {beside}", aim)
            aim = f"<= {aims[1]}" if aims[1] is not None else ""
            self.report.add("enqueue", f"{name}, client CPU per task", client_us, "us", "", aim)
            self.report.add("enqueue", f"{name}, Redis CPU per task", redis_us, "us")

    async def _with_cpu(
        self, measure: Callable[[int], Awaitable[float]], count: int, costs: list[tuple[float, float]]
    ) -> float:
        """The rate; adds what a task cost the client and Redis, which is steadier on a busy machine."""
        client, redis = time.process_time(), self.server.cpu_seconds()
        rate = await measure(count)
        costs.append(((time.process_time() - client) / count * 1e6, (self.server.cpu_seconds() - redis) / count * 1e6))
        return rate

    async def drain(self) -> None:
        await self._drain("drain with the append-only file", 16, 13)
        with self.server.without_log():
            await self._drain("drain without the append-only file", 11, 9)

    async def processes(self) -> None:
        found = []
        for number in range(self.rounds):
            rows: dict[int, Drain] = {}
            for processes in (1, 2) if number % 2 else (2, 1):
                work = drain.drain(self.server, self.many * 2, processes)
                rows[processes] = await self.said("drain, one process and two", work)
            found.append((rows[2].rate / rows[1].rate, rows))
        ratio, rows = _middle(found)
        cost = statistics.median(rows[2].redis_us / rows[1].redis_us for _, rows in found)
        remark = f"{ratio:.2f} x one, in turns; Redis at {rows[2].redis_load:.0%}"
        self.report.add("drain", "two processes", rows[2].rate, "/s", remark, ">= 1.05 x")
        name = "two processes, Redis CPU per task"
        self.report.add("drain", name, rows[2].redis_us, "us", f"{cost:.2f} x one", "<= 1.05 x")

    async def statistics(self) -> None:
        found = []
        for number in range(self.rounds):
            rows: dict[str, Drain] = {}
            for kept in ("on", "off") if number % 2 else ("off", "on"):
                work = drain.drain(self.server, self.many * 2, BENCH_STATISTICS=kept)
                rows[kept] = await self.said("drain with and without statistics", work)
            found.append(rows)
        for name, ratios, unit in (
            ("drain with statistics", [rows["on"].rate / rows["off"].rate for rows in found], ">= 0.97 x"),
            ("worker CPU per task", [rows["on"].worker_us / rows["off"].worker_us for rows in found], ""),
        ):
            self.report.add("statistics", name, statistics.median(ratios), "x", "beside none, in turns", unit)

    async def _drain(self, group: str, aim: int, better: int) -> None:
        found = await self.beside_ping(group, lambda: drain.drain(self.server, self.many * 2))
        ratio, one = _middle([(one.rate / ping, one) for ping, one in found])
        self.report.add(group, "one process", one.rate, "/s", f"{ratio:.2f} x PING")
        worker_us = statistics.median(one.worker_us for _, one in found)
        redis_us = statistics.median(one.redis_us for _, one in found)
        self.report.add(group, "worker CPU per task", worker_us, "us", "", "<= 25")
        self.report.add(group, "Redis CPU per task", redis_us, "us", "", f"<= {aim}, better {better}")
        deep, window = (100_000, 20_000) if self.quick else (1_000_000, 80_000)
        shallow = [await self.said(f"{group}, 20,000 pending", drain.drain(self.server, 20_000)) for _ in found]
        small = statistics.median(one.rate for one in shallow)
        windows = drain.drain_deep(self.server, deep, window, self.rounds)
        large = statistics.median(await self.said(f"{group}, {deep:,} pending", windows))
        self.report.add(group, "20,000 pending", small, "/s")
        self.report.add(group, f"{deep:,} pending", large, "/s", f"{large / small:.2f} x 20,000", ">= 0.9 x")

    async def latency(self) -> None:
        for name, measure, aims in (
            ("pick-up", latency.pick_up, (1, 2)),
            ("pick-up of a plain LPUSH", latency.pick_up_from_go, (None, 20)),
            ("lateness", latency.lateness, (1.5, 4)),
        ):
            turns = [await self.said(name, measure(self.server)) for _ in range(self.rounds)]
            least = f"min {min(values[0] for values in turns):.2f}"
            self.report.add(
                "latency", f"{name} p50", at_place(turns, 0.5), "ms", least, f"<= {aims[0]}" if aims[0] else ""
            )
            most = f"max {max(values[-1] for values in turns):.2f}"
            self.report.add("latency", f"{name} p99", at_place(turns, 0.99), "ms", most, f"<= {aims[1]}")
        idle = await self.said("idling", latency.idle(self.server))
        self.report.add("idle", "client calls", idle["calls_per_second"], "/s", "", "<= 2")
        self.report.add("idle", "worker CPU", idle["cpu_percent"], "%")
        self.report.add("idle", "worker memory", idle["resident_mb"], "MB", "", "<= 60")

    async def scale(self) -> None:
        few = await self.said("settling", scale.settle_cost(self.server, 50, shuffled=False))
        many = await self.said("settling", scale.settle_cost(self.server, 5_000, shuffled=False))
        mixed = await self.said("settling", scale.settle_cost(self.server, 5_000, shuffled=True))
        self.report.add("settle", "50 active, in order", few, "us Redis")
        self.report.add("settle", "5,000 active, in order", many, "us Redis", f"{many / few:.2f} x", "<= 2 x")
        self.report.add("settle", "5,000 active, random order", mixed, "us Redis", "", "<= 60")
        ours, go = await self.said("memory", scale.memory_per_task(self.server))
        self.report.add("memory", "per pending task", ours, "bytes", f"{ours / go:.3f} x as Go writes it", "<= 1 x")

    async def growth(self) -> None:
        """How the cost of a task grows with its size, with the number of queues and with that of workers."""
        few = self.many // 5
        for size, count in ((100, self.many), (1_000, self.many), (10_000, few), (100_000, few // 5)):
            found = drain.drain(self.server, count, payload="x" * (size - 13))
            self._grown(f"payload of {size:,} bytes", await self.said("drain, larger payloads", found))
        for number in (1, 10, 100):
            found = drain.drain(self.server, self.many, queues=[f"bench{n}" for n in range(number)])
            self._grown(f"{number} queue{'s' * (number > 1)}", await self.said("drain, several queues", found))
        for number in (1, 2, 4):
            found = drain.drain(self.server, self.many, number)
            name = f"{number} worker process{'es' * (number > 1)}"
            self._grown(name, await self.said("drain, several processes", found))

        with bench_server() as other:
            found = drain.drain_apart((self.server, other), self.many)
            self._grown("2 servers, a worker each", await self.said("drain, two servers", found))

    async def durable(self) -> None:
        """Steps, waits and children of durable handlers."""
        found = await self.beside_ping("steps", lambda: durable.step_rate(self.server, 200 if self.quick else 400))
        ratio, one = _middle([(one.rate / ping, one) for ping, one in found])
        self.report.add("durable", "steps, 50 tasks at once", one.rate, "/s", f"{ratio:.2f} x PING", ">= 15,000")
        self.report.add("durable", "worker CPU per step", one.worker_us, "us")
        self.report.add("durable", "Redis CPU per step", one.redis_us, "us")
        for name, measure in (("emit until it runs", durable.wake_ups), ("lateness of sleeps", durable.sleeps)):
            values = await self.said(name, measure(self.server))
            middle, high = values[len(values) // 2], values[int(len(values) * 0.99)]
            self.report.add("durable", f"{name}, p50", middle, "ms", f"min {values[0]:.2f}")
            self.report.add("durable", f"{name}, p99", high, "ms", f"max {values[-1]:.2f}", "<= 10")
        ratios, kept = [], []
        for number in range(self.rounds):
            ways = (durable.gathered, durable.alone, durable.kept)
            each = {way: await self.said("gather", way(self.server, 10_000)) for way in ways[:: 1 - number % 2 * 2]}
            ratios.append((each[durable.gathered].seconds / each[durable.alone].seconds, each[durable.gathered]))
            kept.append(each[durable.gathered].seconds / each[durable.kept].seconds)
        ratio, children = _middle(ratios)
        name = "gather of 10,000 children"
        beside = f"{ratio:.2f} x the same tasks alone, {statistics.median(kept):.2f} x with kept results"
        self.report.add("durable", name, children.seconds, "s", beside, "<= 1.6 x")
        self.report.add("durable", f"{name}, Redis CPU per child", children.redis_us, "us")
        count = 20_000 if self.quick else 100_000
        large = await self.said(f"gather of {count:,}", durable.gathered(self.server, count))
        self.report.add("durable", f"gather of {count:,} children", large.seconds, "s")
        name = f"gather of {count:,} children, slowest command"
        self.report.add("durable", name, large.slowest, "ms", "", "<= 10")
        settle = 0.0 if self.quick else 65.0
        waiting = await self.said(f"{count:,} that wait", durable.many_waiting(self.server, count, settle))
        self.report.add("durable", f"{count:,} waiting tasks, Redis memory each", waiting.each, "bytes", "", "<= 1500")
        self.report.add("durable", f"{count:,} waiting tasks, worker CPU", waiting.worker_percent, "%")
        self.report.add("durable", f"{count:,} waiting tasks, Redis CPU", waiting.redis_percent, "%")

    def _grown(self, name: str, one: Drain) -> None:
        remark = f"Redis {one.redis_us:.1f} us and {one.redis_load:.0%} of a core, workers {one.worker_us:.1f} us"
        self.report.add("growth", name, one.rate, "/s", remark)

    async def gateway(self) -> None:
        seconds = 3.0 if self.quick else 6.0
        for kind, library, aim in (("ws", "picows", 40_000), ("quic", "aioquic", 15_000)):
            alone = await self.said(f"bare {library}", asyncio.to_thread(gateway.bare, kind, seconds))
            ours = await self.said(f"gateway, {kind}", asyncio.to_thread(gateway.delivered, self.server, kind, seconds))
            self.report.add("gateway", f"bare {library}, one write per message", alone.rate, "/s", alone.load)
            remark = f"{ours.rate / alone.rate:.2f} x bare; {ours.load}"
            self.report.add(
                "gateway", f"{kind} delivered and acknowledged", ours.rate, "/s", remark, f">= 0.2 x bare, {aim:,}"
            )
            self.report.add("gateway", f"{kind} gateway CPU per message", ours.cpu_us, "us")
            found = await self.said(f"push latency, {kind}", gateway.latency(self.server, kind))
            middle, high = found[len(found) // 2], found[int(len(found) * 0.99)]
            self.report.add("gateway", f"{kind} push latency p50", middle, "ms", "1,000/s", "<= 3")
            self.report.add("gateway", f"{kind} push latency p99", high, "ms", f"max {found[-1]:.1f}", "<= 15")
            missed = await self.said(f"replay, {kind}", gateway.replay(self.server, kind))
            self.report.add("gateway", f"{kind} replay of 1,000 missed", missed, "ms", "", "<= 150")
        memory = await self.said("idle connections", gateway.idle_kb(self.server))
        self.report.add("gateway", "memory per idle WebSocket", memory, "kB", "", "<= 60")
        if await self.said("installing Socket.IO", asyncio.to_thread(socketio.available)):
            ports = gateway.free_port(), gateway.free_port()
            rate, cpu = await self.said("Socket.IO", asyncio.to_thread(socketio.delivered, *ports, seconds))
            self.report.add(
                "gateway", "Socket.IO, Redis streams adapter", rate, "/s", f"unacknowledged; {cpu:.0f} us CPU each"
            )


async def _in_thread(measure: Callable[[BenchServer, float], float], server: BenchServer, seconds: float) -> float:
    return await asyncio.to_thread(measure, server, seconds)


def _middle(rows: list[tuple[float, T]]) -> tuple[float, T]:
    return sorted(rows, key=lambda row: row[0])[len(rows) // 2]


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
    parser.add_argument("--only", metavar="PART,...", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and save nothing")
    arguments = parser.parse_args()
    parts = arguments.only.split(",") if arguments.only else PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only: no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    logging.getLogger("veredus").setLevel(logging.ERROR)
    console, report = Console(stderr=arguments.json), Report()
    with bench_server() as server:
        os.environ["VEREDUS_REDIS_URL"] = server.url
        # On asyncio's own loop, as most producers are; the workers run on uvloop, as `veredus worker` does by itself.
        asyncio.run(Bench(server, report, console, quick=arguments.quick, parts=parts).run())
    if arguments.json:
        print(json.dumps(report.rows))
        return
    report.print(console, "Veredus, and the limits of this machine in the same run, over a unix socket")
    report.save(ARTIFACTS, "bench")
    bars = [(row["name"], row["value"]) for row in report.rows if row["group"] == "machine"]
    bars += [(f"Veredus {row['group']}: {row['name']}", row["value"]) for row in report.rows
             if row["group"].startswith(("enqueue", "drain")) and row["unit"] == "/s"]  # fmt: skip
    bar_chart(ARTIFACTS / "bench.svg", "Operations per second on this machine", bars, "/s")
    console.print(f"saved: {ARTIFACTS / 'bench.json'}, {ARTIFACTS / 'bench.svg'}", highlight=False)


if __name__ == "__main__":
    main()
