"""The part of `make bench` about fleets: many idle workers, many queues, many tasks due at once, workers that die."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from rich.console import Console

from benchmarks import dead_worker, fleet, mass_due
from benchmarks.fleet import Singles
from benchmarks.report import Report
from benchmarks.server import BenchServer

T = TypeVar("T")


class FleetParts:
    """What does not fit into `Bench`."""

    def __init__(self, server: BenchServer, report: Report, console: Console, *, quick: bool) -> None:
        self.server = server
        self.report = report
        self.console = console
        self.quick = quick
        self.rounds = 1 if quick else 5

    async def said(self, what: str, work: Awaitable[T]) -> T:
        with self.console.status(what):
            return await work

    async def idle_workers(self) -> None:
        """Single tasks for one idle worker and for many, in turns."""
        turns: dict[int, list[Singles]] = {1: [], 60: []}
        for number in range(self.rounds):
            for workers in (1, 60) if number % 2 else (60, 1):
                work = fleet.single_tasks(self.server, workers)
                turns[workers].append(await self.said(f"single tasks, {workers} idle", work))
        pairs = zip(turns[1], turns[60], strict=True)
        ratio = statistics.median(many.redis_us / one.redis_us for one, many in pairs)
        for workers, found in turns.items():
            name, is_many = f"{workers} idle worker{'s' * (workers > 1)}", workers > 1
            redis_us = statistics.median(one.redis_us for one in found)
            beside, aim = (f"{ratio:.2f} x one, in turns", "<= 2 x") if is_many else ("", "")
            self.report.add("fleet", f"{name}, one task", redis_us, "us Redis", beside, aim)
            scripts = statistics.median(one.scripts for one in found)
            self.report.add("fleet", f"{name}, scripts per task", scripts, "", "", "<= 4")
            high, most = at_place([one.pick_up for one in found], 0.99), max(one.pick_up[-1] for one in found)
            self.report.add("fleet", f"{name}, pick-up p99", high, "ms", f"max {most:.2f}", "<= 3")

    async def heartbeats(self) -> None:
        seconds = 12.0 if self.quick else 60.0
        beats = await self.said("100 tasks of 1 MB", fleet.beats_of_large_tasks(self.server, seconds))
        name = f"100 tasks of 1 MB run for {seconds:.0f} s, sent by the worker"
        self.report.add("fleet", name, beats / 1000, "kB/s", "", "<= 100")

    async def mass_due(self) -> None:
        count = 200_000 if self.quick else 1_000_000
        due = await self.said("mass due", mass_due.mass_due(self.server, count))
        name, share, high = f"{count:,} due at once", due.rate / due.usual, due.pings[int(len(due.pings) * 0.999)]
        self.report.add("fleet", f"{name}, drain", due.rate, "/s", f"{share:.2f} x usual", ">= 0.7 x")
        self.report.add("fleet", f"{name}, ping p99.9", high, "ms", f"max {due.pings[-1]:.1f}", "<= 20")
        self.report.add("fleet", f"{name}, slowest command", due.slowest, "ms", "", "<= 10")
        self.report.add("fleet", f"{name}, run out of order", due.overtaken, "", f"of {due.looked_at:,} seen", "0")

    async def kills(self) -> None:
        killed = await self.said("kill -9", dead_worker.kills(self.server, 5 if self.quick else 20))
        self.report.add("fleet", "kill -9, elsewhere, p50", killed[len(killed) // 2], "s", f"{len(killed)}", "<= 3")
        self.report.add("fleet", "kill -9, elsewhere, worst", killed[-1], "s", "", "<= 5")

    async def many_queues(self) -> None:
        queues = await self.said("5,000 queues", fleet.many_queues(self.server))
        high, last = queues.pick_up[int(len(queues.pick_up) * 0.99)], queues.plain_push[-1]
        self.report.add("fleet", "5,000 queues, connections", queues.connections, "", "", "<= 16")
        self.report.add("fleet", "5,000 queues, idle, Redis", queues.redis_percent, "%", "", "<= 3")
        self.report.add("fleet", "5,000 queues, idle, worker", queues.worker_percent, "%", "", "<= 3")
        self.report.add("fleet", "5,000 queues, pick-up p99", high, "ms", f"max {queues.pick_up[-1]:.2f}", "<= 5")
        self.report.add("fleet", "5,000 queues, plain LPUSH, max of 10", last, "ms", "", "<= 1500")


def at_place(turns: Sequence[Sequence[float]], place: float) -> float:
    """The median over the turns of what stands at this place among the sorted values of each."""
    return statistics.median(values[int(len(values) * place)] for values in turns)
