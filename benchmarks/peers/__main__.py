"""`make bench-peers`: the same no-op tasks through other queues and Veredus, one worker process each, in turns."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from benchmarks.report import Report, bar_chart
from benchmarks.server import BenchServer, bench_server

HERE = Path(__file__).parent
ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class Peer:
    """`count` is small for slow ones: a rate needs a second or two, not a fixed number."""

    name: str
    packages: tuple[str, ...]
    count: int
    at_least_once: str


PEERS = (
    Peer("rq", ("rq",), 1_000, "no: a killed worker's job fails"),
    Peer("celery", ("celery[redis]",), 4_000, "yes, after the visibility timeout (1 h)"),
    Peer("streaq", ("streaq",), 4_000, "yes"),
    Peer("arq", ("arq",), 6_000, "yes"),
    Peer("saq", ("saq[redis]", "typing_extensions"), 6_000, "with retries set"),
    Peer("bullmq", ("bullmq",), 6_000, "yes"),
    Peer("taskiq", ("taskiq", "taskiq-redis"), 8_000, "yes (stream)"),
    Peer("dramatiq", ("dramatiq[redis]",), 8_000, "yes"),
)
VEREDUS = Peer("veredus", (), 100_000, "yes")


def install(peer: Peer, folder: Path, console: Console) -> Path:
    """The peer's newest release in an environment of its own, kept for the next time."""
    if not peer.packages:
        return Path(sys.executable)
    python = folder / peer.name / "bin" / "python"
    if not (folder / peer.name / ".installed").exists():
        with console.status(f"installing {peer.name}"):
            subprocess.run([sys.executable, "-m", "venv", str(folder / peer.name)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *peer.packages], check=True)
            (folder / peer.name / ".installed").touch()
    return python


def run(peer: Peer, python: Path, server: BenchServer, url: str, patience: float = 120.0) -> float:
    """Tasks per second between 10 % and 90 % of one run."""
    server.flush()
    with tempfile.NamedTemporaryFile() as stamps:
        environment = {
            **os.environ,
            "PEER_URL": url,
            "PEER_COUNT": str(peer.count),
            "PEER_STAMPS": stamps.name,
        }
        command = [str(python), f"{peer.name}_bench.py"]
        subprocess.run(
            [*command, "fill"], cwd=HERE, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=patience
        )
        worker = subprocess.Popen(
            [*command, "work"],
            cwd=HERE,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            began, ended = _stamped(Path(stamps.name), patience)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    return peer.count * 0.8 / (ended - began)


def _stamped(path: Path, patience: float) -> tuple[float, float]:
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        lines = path.read_text().splitlines()
        if len(lines) >= 2:
            return float(lines[0].split()[0]), float(lines[1].split()[0])
        time.sleep(0.05)
    raise TimeoutError("the worker did not get through its tasks in time")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run, in turns (default 3)")
    parser.add_argument("--only", help="comma-separated names of peers")
    arguments = parser.parse_args()
    console = Console()
    chosen = [peer for peer in PEERS if not arguments.only or peer.name in arguments.only.split(",")] + [VEREDUS]
    pythons = {peer.name: install(peer, Path(".bench").resolve(), console) for peer in chosen}
    rates: dict[str, list[float]] = {peer.name: [] for peer in chosen}
    port = _free_port()
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn())
    with bench_server(tcp_port=port) as server, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=arguments.rounds * len(chosen))
        for _ in range(arguments.rounds):
            for peer in chosen:
                progress.update(bar, description=peer.name)
                rates[peer.name].append(run(peer, pythons[peer.name], server, f"redis://127.0.0.1:{port}/0"))
                progress.advance(bar)
    _report(console, chosen, {name: statistics.median(found) for name, found in rates.items()})


def _report(console: Console, chosen: list[Peer], medians: dict[str, float]) -> None:
    ours = medians["veredus"]
    table = Table(title="No-op tasks run per second, 100-byte payload, one worker process, median of the rounds")
    for column in ("queue", "tasks/s", "Veredus is faster by", "runs again after a kill -9"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    report = Report()
    for peer in sorted(chosen, key=lambda peer: medians[peer.name]):
        rate = medians[peer.name]
        table.add_row(peer.name, f"{rate:,.0f}", "" if peer is VEREDUS else f"{ours / rate:.1f} x", peer.at_least_once)
        report.add("peers", peer.name, rate, "/s", f"{ours / rate:.1f} x", peer.at_least_once)
    console.print(table)
    report.save(ARTIFACTS, "peers")
    bars = [("Veredus" if row["name"] == "veredus" else row["name"], row["value"]) for row in report.rows]
    bar_chart(ARTIFACTS / "peers.svg", "Tasks per second, one worker process", bars, "/s")
    console.print(f"saved: {ARTIFACTS / 'peers.json'}, {ARTIFACTS / 'peers.svg'}", highlight=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
