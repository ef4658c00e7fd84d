"""Worker processes of a test, what their handlers wrote down, and what stands in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.support.keyspace import Key, check_invariant, snapshot
from tests.support.servers import RealServer, raw
from tests.support.sizes import FULL, size
from tests.support.waiting import PATIENCE, Condition, until_sync
from veredus import App
from veredus.client.call import Call
from veredus.model.message import TaskMessage
from veredus.model.options import Options
from veredus.wire import keys
from veredus.wire.messages import decode_task

LEASE = size(1.5, 12.0)
SWEEP = size(0.5, 2.0)
QUEUE = "default"
STATISTICS = ("recorded:", "type_minutes:", "type_hours:", "error")
"""What the rest of the name of keys with statistics begins with."""
REMEMBERED = ("batch:", "sent:", "idle", "watcher")
"""The same of what workers and producers remember of themselves."""
LEASE_EXPIRED = "asynq: task lease expired"
SHORT = {"lease": LEASE, "sweep": SWEEP, "deadline_grace": 1.0}
"""What a small run sets; a full one takes the defaults."""
RECOVERY = 15.0
"""Seconds within which a task of a killed worker starts again elsewhere."""
HERE = Path(__file__).parent


def say(text: str) -> None:
    print(text, flush=True)


def seeded() -> random.Random:
    """A random source that can be repeated: its seed is printed, and taken from VEREDUS_TEST_SEED if that is set."""
    seed = int(os.environ.get("VEREDUS_TEST_SEED") or random.randrange(2**32))
    say(f"seed {seed}")
    return random.Random(seed)


class Fact(NamedTuple):
    """What a handler wrote down: start, finish, or the name of the error that ended it."""

    what: str
    id: str
    queue: str
    attempt: int
    pid: int
    at: float


class Process:
    """One worker, or a supervisor with its children, in a process group of its own."""

    def __init__(
        self, command: list[str], folder: Path, number: int, workers: int, environment: dict[str, str] | None = None
    ) -> None:
        self.log_path = folder / f"log.{number}"
        self._workers = workers
        with self.log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_test,
                env=environment or Fleet.inherited({}),
            )
        self.pid = self._popen.pid
        self.killed_at = 0.0

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        if self._popen.poll() is not None:
            raise AssertionError(f"the worker ended at once, exit code {self._popen.returncode}:\n{self.log[-2000:]}")
        return self.log.count(" serves ") >= self._workers

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def wait_exit(self, seconds: float = PATIENCE) -> int:
        return self._popen.wait(seconds)

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        self.killed_at = time.time()
        self._popen.kill()
        self._popen.wait()

    def stop(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def children(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def destroy(self) -> None:
        """The whole group, stopped or not."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()


def die_with_test() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether this process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


INDEXES = ("asynq:queues", "asynq:servers", "asynq:workers", "asynq:types", "asynq:details", "asynq:checkers")


class Fleet:
    """Starts workers on one server and knows what they did."""

    def __init__(self, server: RealServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.redis = server.client()
        self.processes: list[Process] = []
        self._app = App(server.url)
        self._facts: list[Fact] = []
        self._read = 0
        """Bytes of the file."""
        for name in ("shop.py", "runner.py", "sender.py"):
            shutil.copy(HERE / name, folder / name)
        (folder / "facts").touch()

    # Processes.

    @staticmethod
    def inherited(more: dict[str, str]) -> dict[str, str]:
        """The environment of a process that the test starts."""
        return {**os.environ, "PYTHONUNBUFFERED": "1", **more}

    def start(
        self,
        *,
        url: str = "",
        cli: bool = False,
        processes: int = 1,
        fault: Any = None,
        claim_ms: int = 0,
        kill_after: float = 0.0,
        wait: bool = True,
        within: Sequence[str] = (),
        **settings: Any,
    ) -> Process:
        """One worker: by the real command line if `cli` or at full size, else through the runner with short leases.
        `within`: what the command begins with, to run in a namespace."""
        url = url or self.server.url
        settings = {"max_crashes": 0, **settings}  # these tests kill more often than any task may
        if (cli or FULL) and not (fault or claim_ms or kill_after):
            command = [sys.executable, "-m", "veredus", "worker", "shop:app", "--redis", url]
            if not FULL:
                settings = {"lease": LEASE, **settings}
            for name, value in {**settings, "processes": processes}.items():
                command += [f"--{name.replace('_', '-')}", str(value)]
        else:
            given = {**({} if FULL else SHORT), **settings, "processes": processes}
            order = {"url": url, "settings": given, "fault": fault, "claim_ms": claim_ms, "kill_after": kill_after}
            command = [sys.executable, "runner.py", json.dumps(order)]
        process = Process([*within, *command], self.folder, len(self.processes), processes)
        self.processes.append(process)
        if wait:
            self.wait(lambda: process.is_ready, "the worker's start")
        return process

    def start_many(self, count: int, **settings: Any) -> list[Process]:
        started = [self.start(wait=False, **settings) for _ in range(count)]
        self.wait(lambda: all(process.is_ready for process in started), "the start of all workers")
        return started

    def stop(self, workers: list[Process]) -> list[int]:
        """SIGTERM for all, the exit codes. One that Python is still loading would not hear it."""
        self.wait(lambda: all(worker.is_ready for worker in workers), "the start of all workers")
        for worker in workers:
            worker.terminate()
        return [worker.wait_exit() for worker in workers]

    def close(self) -> None:
        for process in self.processes:
            process.destroy()
        self._app.close_sync()
        with contextlib.suppress(redis.RedisError):
            self.redis.close()

    def log(self) -> str:
        return "".join(process.log for process in self.processes)

    # Tasks.

    def enqueue(self, count: int = 1, *, task: str = "job", options: Any = None, **payload: Any) -> list[str]:
        return self.enqueue_all([payload] * count, task=task, options=options)

    def enqueue_all(self, payloads: Iterable[Any], *, task: str = "job", options: Any = None) -> list[str]:
        chosen = Options().merged(options or {})
        calls: list[Call[Any]] = [Call(task, json.dumps(payload).encode(), chosen) for payload in payloads]
        return [handle.id for handle in self._app.enqueue_many_sync(calls)]

    def open_gate(self, name: str) -> None:
        (self.folder / f"gate.{name}").touch()

    def facts(self, what: str = "") -> list[Fact]:
        """What was written down so far; a line that is just being written counts next time."""
        with (self.folder / "facts").open("rb") as file:
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")
            self._read = file.tell() - len(rest)
        self._facts += [Fact(**json.loads(line)) for line in lines]
        return [fact for fact in self._facts if not what or fact.what == what]

    def starts(self, *ids: str) -> list[Fact]:
        return [fact for fact in self.facts("start") if not ids or fact.id in ids]

    def finishes(self, *ids: str) -> list[Fact]:
        return [fact for fact in self.facts("finish") if not ids or fact.id in ids]

    # Redis.

    def pending(self, queue: str = QUEUE) -> list[str]:
        """The next to run first."""
        return [raw(item).decode() for item in reversed(self.redis.lrange(keys.pending(queue), 0, -1))]

    def message(self, task_id: str, queue: str = QUEUE) -> TaskMessage:
        data = self.redis.hget(keys.task(queue, task_id), "msg")
        assert data is not None, f"task {task_id} is gone"
        return decode_task(raw(data))

    def field(self, task_id: str, name: str, queue: str = QUEUE) -> str:
        return raw(self.redis.hget(keys.task(queue, task_id), name) or b"").decode()

    def number_in(self, state: str, queue: str = QUEUE) -> int:
        key = f"{keys.queue_prefix(queue)}{state}"
        return int(self.redis.llen(key) if state in ("pending", "active") else self.redis.zcard(key))

    def counter(self, name: str, queue: str = QUEUE) -> int:
        return int(self.redis.get(f"{keys.queue_prefix(queue)}{name}") or 0)

    def tasks_left(self, queue: str = "*") -> int:
        return sum(1 for _ in self.redis.scan_iter(f"asynq:{{{queue}}}:t:*", count=5000))

    def keyspace(self, queue: str = QUEUE) -> dict[str, Key]:
        """Everything of one queue but statistics and what workers and producers remember of themselves."""
        prefix = keys.queue_prefix(queue)
        own = tuple(prefix + name for name in (*STATISTICS, *REMEMBERED))
        space = asyncio.run(snapshot(_Awaitable(self.redis)))
        return {name: key for name, key in space.items() if name.startswith(prefix) and not name.startswith(own)}

    def breaches(self) -> list[str]:
        return asyncio.run(check_invariant(_Awaitable(self.redis)))

    def remains(self) -> list[str]:
        """Keys that should not be there once everything is done: all but counters and statistics, numbers of batches
        and of calls, queues, and records of workers that were killed, which were idle, watched a queue or looked for
        dead ones."""
        fine = ("processed", "failed", *STATISTICS, *REMEMBERED)
        return [
            name
            for name in sorted(key.decode() for key in self.redis.scan_iter(count=5000))
            if not name.startswith(INDEXES) and not name.partition("}:")[2].startswith(fine)
        ]

    def shown_alive(self, pid: int) -> bool:
        """Whether Asynq's tools would list this worker."""
        now = time.time()
        names = [raw(name).decode() for name in self.redis.zrangebyscore(keys.SERVERS, now, "+inf")]
        return any(f":{pid}:" in name and self.redis.exists(name) for name in names)

    # Waiting.

    def wait(self, condition: Condition, what: str, *, seconds: float = PATIENCE) -> float:
        """Ask until it is true; returns how long that took. Says what the workers logged if it does not come."""
        began = time.monotonic()
        try:
            until_sync(condition, seconds=max(seconds, PATIENCE), what=what)
        except AssertionError as exc:
            logs = "\n".join(f"--- {p.log_path.name} (pid {p.pid})\n{p.log[-1500:]}" for p in self.processes[-8:])
            raise AssertionError(f"{exc}; breaches: {self.breaches()}\n{logs}") from None
        return time.monotonic() - began

    def wait_done(self, *, seconds: float = PATIENCE, queue: str = "*") -> float:
        return self.wait(lambda: not self.tasks_left(queue), "the end of all tasks", seconds=seconds)

    @contextlib.contextmanager
    def sampling(self, every: float = 0.05) -> Iterator[Samples]:
        """Check the invariant again and again meanwhile."""
        samples = Samples(self.server, every)
        samples.thread.start()
        try:
            yield samples
        finally:
            samples.ending.set()
            samples.thread.join(PATIENCE)


class Samples:
    """Consistent looks at the whole keyspace, from a thread."""

    def __init__(self, server: RealServer, every: float) -> None:
        self.count = 0
        self.breaches: list[str] = []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(server.client(), every), daemon=True)

    def _run(self, client: redis.Redis, every: float) -> None:
        while not self.ending.wait(every):
            try:
                found = asyncio.run(check_invariant(_Awaitable(client)))
            except redis.RedisError:
                continue  # the server is stopped or killed
            self.count += 1
            self.breaches += found[:20]


class _Awaitable:
    """The one call that the keyspace helpers make, over a synchronous client."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def eval(self, *args: Any) -> Any:
        return self._client.eval(*args)


def thread(function: Callable[[], None]) -> threading.Thread:
    started = threading.Thread(target=function, daemon=True)
    started.start()
    return started
