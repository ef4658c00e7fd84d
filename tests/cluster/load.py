"""Load on several queues while servers go away: what was enqueued, what of it is known to be replicated, what ran."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App, StoreError, current

Master = Callable[[str], RealServer | None]


class Load:
    """A producer and a worker in this process; `master` says which server has a queue right now."""

    def __init__(self, url: str, queues: list[str], master: Master, *, replicas: int = 1, **settings: Any) -> None:
        """`replicas`: how many must have a task before it counts as replicated: all that may become the master."""
        self.app = App(url, patience=0.2, timeout=2.0)
        self.queues = queues
        self._master = master
        self._replicas = replicas
        self._settings = settings
        self.acknowledged: dict[str, str] = {}
        """Ids by queue that the server said it has."""
        self.replicated: set[str] = set()
        """Those of them that a replica has, too."""
        self.confirmed: set[str] = set()
        """Those that were sent with durability="replica"."""
        self.ran: Counter[str] = Counter()
        self.lateness: dict[str, float] = {}
        self.refused = 0
        self._stop = asyncio.Event()

        @self.app.task(name="load", retry_delay=0.1)
        async def work(due: float) -> None:
            job = current()
            self.ran[job.id] += 1
            if due:
                self.lateness[job.id] = time.time() - due
            await asyncio.sleep(0.002)

        self.work = work

    def worker(self) -> Any:
        return self.app.worker(self.queues, concurrency=8, **self._settings)

    def stop(self) -> None:
        self._stop.set()

    async def produce(self, queue: str, *, delay: float = 0.0, pause: float = 0.005, durability: str = "any") -> None:
        """One task after the other; after each, ask whether a replica has it, unless it was sent so."""
        probe = Probe(self._replicas)
        while not self._stop.is_set():
            master = self._master(queue)
            due = time.time() + delay if delay else 0.0
            task = self.work.using(queue=queue, delay=delay or None, durability=durability)
            try:
                handle = await task.enqueue(due)
            except StoreError:
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            self.acknowledged[handle.id] = queue
            if durability != "any":
                self.confirmed.add(handle.id)
                continue
            # Replication is one ordered stream: if a later write of the same master is there, so is ours.
            if master is not None and await asyncio.to_thread(probe.is_replicated, master, queue):
                self.replicated.add(handle.id)
            await asyncio.sleep(pause)
        probe.close()

    async def all_ran(self) -> None:
        """Everything that was replicated has run; fails naming what has not."""
        safe = self.replicated | self.confirmed
        try:
            await until(lambda: all(self.ran[one] for one in safe), seconds=60)
        except AssertionError:
            missing = [(one, one in self.confirmed) for one in safe if not self.ran[one]]
            raise AssertionError(
                f"{len(missing)} of {len(safe)} replicated tasks (True: confirmed) did not run: {missing[:5]}"
            ) from None

    async def grows(self, count: int) -> None:
        """So many more tasks have run."""
        before = len(self.ran)
        await until(lambda: len(self.ran) > before + count, what=f"{count} more tasks")

    def report(self) -> str:
        lost = [one for one in self.acknowledged if not self.ran[one] and one not in self.confirmed]
        twice = sum(1 for runs in self.ran.values() if runs > 1)
        return (
            f"{len(self.acknowledged) - len(self.confirmed)} acknowledged, {len(self.replicated)} of them known to be "
            f"replicated, {len(lost)} lost; with durability replica {len(self.confirmed)} acknowledged, "
            f"{len([one for one in self.confirmed if not self.ran[one]])} lost; {self.refused} refused, "
            f"{twice} ran more than once"
        )


class Probe:
    """Writes behind the producer, on the same master, and waits until a replica has that."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._clients: dict[int, redis.Redis] = {}

    def is_replicated(self, master: RealServer, queue: str) -> bool:
        client = self._clients.setdefault(master.port, master.client())
        with contextlib.suppress(redis.RedisError, OSError):
            pipe = client.pipeline(transaction=False)
            pipe.execute_command("SET", f"{{{queue}}}probe", 1)
            pipe.execute_command("WAIT", self._replicas, 300)
            return int(pipe.execute()[1]) >= self._replicas
        return False

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
