"""`make bench-peers`: the same no-op tasks through Veredus, Go Asynq and queues for Python, in turns on one server."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers import others
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.durable import DBOS, DurableComparison
from benchmarks.peers.others import PEERS, Peer
from benchmarks.peers.sides import OURS, Measuring, Side, asynq_release, go_side
from benchmarks.report import bar_chart
from benchmarks.server import bench_server

ARTIFACTS = Path("artifacts")
FOLDER = Path(".bench")
NO_GO = "GO ASYNQ IS NOT MEASURED: no Go toolchain is installed here. The rest is."
FEWEST = 2_000
BESIDE_GO = ("enqueue", "pick-up", "lateness", "recovery")
NAMES = ("go", *(peer.name for peer in PEERS), DBOS.name)


class Run:
    def __init__(self, measuring: Measuring, go: Side | None, chosen: argparse.Namespace, console: Console) -> None:
        self.measuring, self.console = measuring, console
        self.count, self.rounds, self.measures = chosen.count, chosen.rounds, chosen.measure
        self.sides = [OURS] if go is None else [OURS, go]
        self.comparison = Comparison()
        self.rates: dict[str, list[float]] = {}
        self.durable = DurableComparison(FOLDER.resolve(), console) if DBOS.name in chosen.only else None

    def in_turns(self, number: int) -> list[Side]:
        """The other one first in every second round."""
        return self.sides[::-1] if number % 2 else self.sides

    def add(self, side: Side, group: str, name: str, unit: str, value: float, *, more: bool = False) -> None:
        self.comparison.add(group, name, unit, value, ours=side is OURS, more=more)

    def drain(self, number: int) -> None:
        for side in self.in_turns(number):
            with self.console.status(f"round {number + 1}: drain, {side.name}"):
                found = self.measuring.drain(side, self.count)
            self.rates.setdefault(side.name, []).append(found.rate)
            self.add(side, "drain", "rate", "tasks/s", found.rate, more=True)
            self.add(side, "drain", "worker CPU per task", "us", found.worker_us)
            self.add(side, "drain", "Redis CPU per task", "us", found.redis_us)

    def enqueue(self, number: int) -> None:
        for how, name in (("one", "one at a time"), ("concurrent", "50 concurrent"), ("batch", "in one call")):
            for side in self.in_turns(number):
                if how == "batch" and not side.batches:
                    continue
                with self.console.status(f"round {number + 1}: enqueue {name}, {side.name}"):
                    rate, cpu = self.measuring.enqueue(side, how, self.count // (5 if how == "one" else 1))
                self.add(side, "enqueue", name, "tasks/s", rate, more=True)
                self.add(side, "enqueue", f"{name}: client CPU per task", "us", cpu)

    def latency(self, how: str, name: str) -> None:
        for side in self.sides:
            with self.console.status(f"{name}, {side.name}"):
                found = self.measuring.late(side, how, max(10, self.count // 250))
            self.add(side, "latency", f"{name}, p50", "ms", found[len(found) // 2])
            self.add(side, "latency", f"{name}, p99", "ms", found[int(len(found) * 0.99)])
            if how == "later":
                self.add(side, "latency", f"{name}, earliest", "ms", found[0])

    def recover(self) -> None:
        with self.console.status("recovery after kill -9 (some minutes: Go waits for its lease, its slack, its round)"):
            found = self.measuring.recover(self.sides)
        for side, seconds in zip(self.sides, found, strict=True):
            self.add(side, "recovery", "after kill -9, first task", "s", seconds[0])
            self.add(side, "recovery", "after kill -9, last task", "s", seconds[-1])

    def all(self, peers: list[Peer]) -> None:
        pythons = {peer.name: others.install(peer, FOLDER.resolve(), self.console) for peer in peers}
        for number in range(self.rounds):
            self.drain(number)
            for peer in peers:
                with self.console.status(f"round {number + 1}: drain, {peer.name}"):
                    url = self.measuring.url(OURS)
                    rate = others.rate(peer, pythons[peer.name], self.measuring.server, url)
                self.rates.setdefault(peer.name, []).append(rate)
            if "enqueue" in self.measures:
                self.enqueue(number)
            if self.durable is not None:
                self.durable.round(number, self.measuring, self.console)
        if "pick-up" in self.measures:
            self.latency("now", "pick-up")
        if "lateness" in self.measures:
            self.latency("later", "lateness of delayed tasks")
        if "recovery" in self.measures:
            self.recover()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run, in turns (default 3)")
    parser.add_argument("--only", default=",".join(NAMES), help=f"comma-separated, some of {', '.join(NAMES)}")
    parser.add_argument("--count", type=int, default=50_000, help="tasks in a queue that is drained (default 50,000)")
    parser.add_argument("--transport", choices=("tcp", "unix"), default="tcp", help="how all of them reach the server")
    parser.add_argument(
        "--measure", default=",".join(BESIDE_GO), help=f"beside the drain, some of {', '.join(BESIDE_GO)}"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    chosen = parser.parse_args()
    if chosen.count < FEWEST:
        parser.error(f"--count {chosen.count}: expected at least {FEWEST:,}, for a rate")
    for option, known in (("only", NAMES), ("measure", BESIDE_GO)):
        given = [name for name in getattr(chosen, option).split(",") if name]
        if unknown := [name for name in given if name not in known]:
            parser.error(f"--{option} {','.join(unknown)}: expected some of {', '.join(known)}")
        setattr(chosen, option, given)
    names = chosen.only
    peers = [peer for peer in PEERS if peer.name in names]
    if chosen.transport == "unix" and peers:
        parser.error("--transport unix: only with --only go")
    console = Console(stderr=chosen.json)
    go = go_side(FOLDER.resolve()) if "go" in names else None
    if "go" in names and go is None:
        console.print(f"\n{NO_GO}\n", style="bold red")
    if go is None:
        chosen.measure = []
    port = _free_port()
    with bench_server(tcp_port=port) as server:
        run = Run(Measuring(server, port, chosen.transport), go, chosen, console)
        run.all(peers)
        version = server.client.info("server").get("valkey_version", "")
    figures = {
        "transport": chosen.transport, "server": f"Valkey {version}", "cores": os.cpu_count(), "rounds": chosen.rounds,
        "count": chosen.count, "python": platform.python_version(), "asynq": asynq_release() if go else None,
        "drain": {name: statistics.median(found) for name, found in run.rates.items()},
        "rows": run.comparison.as_list(), "durable": {} if run.durable is None else run.durable.rates,
    }  # fmt: skip
    _report(console, run, peers, figures, as_json=chosen.json)


def _report(console: Console, run: Run, peers: list[Peer], figures: dict[str, Any], *, as_json: bool) -> None:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / "peers.json").write_text(json.dumps(figures, indent=1) + "\n")
    bars = sorted(figures["drain"].items(), key=lambda bar: -bar[1])
    bar_chart(ARTIFACTS / "peers.svg", "Tasks per second, one worker process", bars, "/s")
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    where = (
        f"{figures['transport']}, {figures['server']}, {figures['cores']} cores, median of {figures['rounds']} rounds"
    )
    if len(run.sides) > 1:
        console.print(run.comparison.table(f"Veredus beside {run.sides[1].name} ({where})", run.sides[1].name))
        console.print(f"This release of Asynq ({figures['asynq']}) cannot enqueue in batches.", highlight=False)
    remarks = {peer.name: peer.at_least_once for peer in peers}
    table = Table(title=f"No-op tasks run per second, 100-byte payload, one worker process ({where})")
    for column in ("queue", "tasks/s", "Veredus is faster by", "runs again after a kill -9"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    for name, rate in reversed(bars):
        ratio = "" if name == OURS.name else f"{figures['drain'][OURS.name] / rate:.1f} x"
        table.add_row(name, f"{rate:,.0f}", ratio, remarks.get(name, "yes"))
    console.print(table)
    if run.durable is not None:
        console.print(run.durable.table())
    console.print(f"saved: {ARTIFACTS / 'peers.json'}, {ARTIFACTS / 'peers.svg'}", highlight=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
