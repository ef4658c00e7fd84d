"""Runs the demo: real workers on a real server, thousands of tasks, a worker killed with -9."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from veredus import embedded
from veredus.demo.gateway import Delivered, show_gateway
from veredus.demo.journal import VARIABLE, Journal

TASKS = 10_000
DELAYED = 200
FLAKY = 20
WORKERS = 2
PATIENCE = 40.0


def run_demo() -> int:
    """Run the demo. Returns 0 if nothing was lost."""
    console = Console()
    logging.getLogger("veredus").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="veredus-demo-") as folder:
        os.environ["VEREDUS_DATA"] = folder
        os.environ[VARIABLE] = str(Path(folder) / "journal")
        server = embedded.ensure(folder, linger=30)
        os.environ["VEREDUS_REDIS_URL"] = server.url
        try:
            return asyncio.run(Show(console, Journal(Path(os.environ[VARIABLE])), server.describe()).play())
        finally:
            embedded.stop(folder)


class Show:
    def __init__(self, console: Console, journal: Journal, server: str) -> None:
        self._console = console
        self._journal = journal
        self._server = server
        self._workers: list[asyncio.subprocess.Process] = []
        self._rate = 0.0
        self._recovered_after = 0.0
        self._delivered: Delivered | None = None

    async def play(self) -> int:
        from veredus.demo.tasks import app

        self._say(f"[bold]Veredus[/] on the {self._server}")
        try:
            for _ in range(WORKERS):
                await self._start_worker()
            self._say(f"{WORKERS} worker processes started: {', '.join(str(w.pid) for w in self._workers)}")
            async with app:
                await self._thousands()
                await self._to_the_millisecond()
                await self._failing_ones()
                self._delivered = await show_gateway(self._say)
                await self._kill_a_worker()
            await self._stop_workers()
        finally:
            for worker in self._workers:
                if worker.returncode is None:
                    worker.kill()
        return self._table()

    async def _start_worker(self) -> None:
        command = [sys.executable, "-m", "veredus", "worker", "veredus.demo.tasks:app", "--log-level", "error"]
        log = await asyncio.to_thread(open, str(Path(os.environ["VEREDUS_DATA"]) / "workers.log"), "ab")
        self._workers.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))

    async def _thousands(self) -> None:
        from veredus.demo.tasks import app, work

        with self._progress() as progress:
            bar = progress.add_task(f"{TASKS:,} tasks", total=TASKS)
            # Wait until the workers are loaded, so that only their speed is measured.
            await work.enqueue(0)
            await self._until(lambda: self._journal.count("work") == 1)
            began = time.monotonic()
            await app.enqueue_many(work.call(number) for number in range(1, TASKS))
            await self._until(
                lambda: self._journal.count("work") == TASKS,
                lambda: progress.update(bar, completed=self._journal.count("work")),
            )
            self._rate = TASKS / (time.monotonic() - began)
            progress.update(bar, completed=TASKS)

    async def _to_the_millisecond(self) -> None:
        from veredus.demo.tasks import on_time

        with self._progress() as progress:
            bar = progress.add_task(f"{DELAYED} tasks due at random milliseconds", total=DELAYED)
            for number in range(DELAYED):
                delay = random.uniform(0.3, 3.0)
                await on_time.using(delay=delay).enqueue(number, time.time() + delay)
            await self._until(
                lambda: self._journal.count("on_time") == DELAYED,
                lambda: progress.update(bar, completed=self._journal.count("on_time")),
            )
            progress.update(bar, completed=DELAYED)

    async def _failing_ones(self) -> None:
        from veredus.demo.tasks import flaky

        with self._progress() as progress:
            bar = progress.add_task(f"{FLAKY} tasks that fail at first", total=FLAKY)
            for number in range(FLAKY):
                await flaky.enqueue(number)
            await self._until(
                lambda: self._journal.count("flaky") == FLAKY,
                lambda: progress.update(bar, completed=self._journal.count("flaky")),
            )
            progress.update(bar, completed=FLAKY)

    async def _kill_a_worker(self) -> None:
        from veredus.demo.tasks import long_job

        await long_job.enqueue(0, 60.0)
        await self._until(lambda: bool(self._journal.notes.get("long_job_started")))
        victim = self._journal.notes["long_job_started"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        killed_at = time.time()
        self._say(f"kill -9 {victim}: a worker dies in the middle of a task; the other one takes it over ...")
        await self._until(lambda: self._journal.count("long_job") == 1)
        self._recovered_after = self._journal.notes["long_job_started"][-1]["at"] - killed_at
        self._say(f"... and ran it again after {self._recovered_after:.1f} s")

    async def _stop_workers(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.terminate()
        for worker in self._workers:
            await asyncio.wait_for(worker.wait(), 30)

    def _table(self) -> int:
        notes, count = self._journal.notes, self._journal.count
        enqueued = TASKS + DELAYED + FLAKY + 1
        done = count("work") + count("on_time") + count("flaky") + count("long_job")
        recovered = len(notes["long_job_started"]) - 1
        late = sorted(found["late"] * 1000 for found in notes["on_time"])
        table = Table(title="What happened", show_header=False)
        for name, value in (
            ("enqueued", f"{enqueued:,}"),
            ("done", f"{done:,}"),
            ("retried after a failure", str(len(notes["flaky_attempt"]) - FLAKY)),
            ("recovered from a killed worker", f"{recovered} (after {self._recovered_after:.1f} s)"),
            ("[bold]lost[/]", f"[bold]{enqueued - done}[/]"),
            ("lateness of delayed tasks", f"p50 {_share(late, 0.5):.1f} ms, p99 {_share(late, 0.99):.1f} ms"),
            ("early", str(sum(1 for ms in late if ms < 0))),
            *self._gateway_rows(),
            ("tasks per second", f"{self._rate:,.0f} ({WORKERS} worker processes, enqueued and run)"),
        ):  # fmt: skip
            table.add_row(name, value)
        self._console.print(table)
        self._say("Try next:  [bold]python examples/progress/main.py[/], [bold]veredus --help[/], [bold]README.md[/]")
        return 0 if enqueued == done and self._delivered is not None and self._delivered.whole else 1

    def _gateway_rows(self) -> list[tuple[str, str]]:
        seen = self._delivered
        if seen is None:
            return []
        return [
            ("numbered messages to clients", f"{seen.messages:,} in {seen.seconds:.1f} s, {seen.resumes} resumes"),
            ("missing or out of order", f"{seen.missing} and {seen.disorder}"),
            ("requests answered exactly once", str(seen.answers)),
        ]

    async def _until(self, reached: Callable[[], bool], each_time: Callable[[], None] = lambda: None) -> None:
        give_up = time.monotonic() + PATIENCE
        while True:
            self._journal.read()
            each_time()
            if reached():
                return
            if time.monotonic() > give_up:
                log = (Path(os.environ["VEREDUS_DATA"]) / "workers.log").read_text(errors="replace")
                raise SystemExit(f"the demo did not finish; log of the workers:\n{log[-2000:]}")
            await asyncio.sleep(0.02)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<42}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
