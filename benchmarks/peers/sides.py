"""Veredus and Go Asynq under the same measurements: each a program with the same commands, one worker process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.drain import Drain
from benchmarks.server import BenchServer, process_cpu

GO = Path(__file__).parent / "go"
PATIENCE = 300.0
HUNG = 10
"""Tasks that a killed worker leaves behind."""


@dataclass(frozen=True)
class Side:
    name: str
    command: tuple[str, ...]
    batches: bool

    @contextmanager
    def worker(self, url: str, stamps: str = "") -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [*self.command, "work", url],
            env={**os.environ, "BENCH_STAMPS": stamps},
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def run(self, *order: str) -> str:
        done = subprocess.run([*self.command, *order], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(f"{self.name} could not {' '.join(order)}: {done.stderr}")
        return done.stdout


OURS = Side("Veredus", (sys.executable, "-m", "benchmarks.peers.ours"), batches=True)


def asynq_release() -> str:
    found = re.search(r"hibiken/asynq v(\S+)", (GO / "go.mod").read_text())
    assert found is not None
    return found[1]


def go_side(folder: Path) -> Side | None:
    """The Go program, compiled; None without a Go toolchain."""
    go = shutil.which("go")
    if go is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "go-peer"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
    subprocess.run([go, "build", "-o", str(program), "."], cwd=GO, env=environment, check=True, timeout=600)
    return Side(f"Go Asynq {asynq_release()}", (str(program),), batches=False)


class Measuring:
    """One server, and how each program reaches it: all over loopback TCP, or all over the unix socket."""

    def __init__(self, server: BenchServer, port: int, transport: str) -> None:
        self.server = server
        self._tcp, self._transport = port, transport

    def url(self, side: Side, database: int = 0) -> str:
        if self._transport == "tcp":
            return f"redis://127.0.0.1:{self._tcp}/{database}"
        scheme = "unix" if side is OURS else "redis-socket"
        return f"{scheme}://{self.server.socket}?db={database}"

    def drain(self, side: Side, count: int) -> Drain:
        """A queue that was filled before, timed between 10 % and 90 %."""
        self.server.flush()
        OURS.run("enqueue", self.url(OURS), "batch", str(count))
        with side.worker(self.url(side)) as worker:
            began, start = self._reach(int(count * 0.1))
            cpu, redis_cpu = process_cpu(worker.pid), self.server.cpu_seconds()
            ended, stop = self._reach(int(count * 0.9))
            cpu, redis_cpu = process_cpu(worker.pid) - cpu, self.server.cpu_seconds() - redis_cpu
        done, seconds = stop - start, ended - began
        return Drain(done / seconds, cpu / done * 1e6, redis_cpu / done * 1e6, redis_cpu / seconds)

    def _reach(self, wanted: int) -> tuple[float, int]:
        def done() -> int:
            return int(self.server.client.get("asynq:{bench}:processed") or 0)

        _wait(lambda: done() >= wanted, f"{wanted} tasks")
        return time.perf_counter(), done()

    def enqueue(self, side: Side, how: str, count: int) -> tuple[float, float]:
        """Tasks per second, and microseconds of the client's CPU for each."""
        self.server.flush()
        found = json.loads(side.run("enqueue", self.url(side), how, str(count)))
        return count / found["seconds"], found["cpu"] / count * 1e6

    def late(self, side: Side, how: str, count: int) -> list[float]:
        """Milliseconds from when a task was sent, or due, to its handler; by an idle worker."""
        self.server.flush()
        with tempfile.NamedTemporaryFile() as stamps, side.worker(self.url(side), stamps.name):
            side.run("send", self.url(side), "now", "1")
            lines(stamps.name, 1)
            side.run("send", self.url(side), how, str(count))
            found = lines(stamps.name, count + 1)
        return sorted(value * 1000 for value in found[1:])

    def recover(self, sides: list[Side]) -> list[list[float]]:
        """Seconds from a kill -9 until each task of the dead worker runs again in another one that was idle beside it.
        All sides at once, each in a database of its own, because this is mostly waiting."""
        self.server.flush()
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self._recover, sides, range(len(sides))))

    def _recover(self, side: Side, database: int) -> list[float]:
        url = self.url(side, database)
        with tempfile.NamedTemporaryFile() as stamps, ExitStack() as stack:
            with side.worker(url, stamps.name):
                side.run("send", url, "hang", str(HUNG))
                lines(stamps.name, HUNG)
                stack.enter_context(side.worker(url, stamps.name))
                client = redis.Redis(unix_socket_path=self.server.socket, db=database)
                _wait(lambda: client.zcard("asynq:servers") == 2, "the second worker")
                client.close()
            killed = time.time()
            return sorted(at - killed for at in lines(stamps.name, 2 * HUNG)[HUNG:])


def lines(path: str, wanted: int) -> list[float]:
    """The numbers that the handlers wrote down, once there are so many."""
    file = Path(path)
    _wait(lambda: len(file.read_text().split()) >= wanted, f"{wanted} tasks")
    return [float(value) for value in file.read_text().split()]


def _wait(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not come within {PATIENCE:.0f} s")
        time.sleep(0.005)
