"""Several scheduler processes, killed and stopped while they lead: every tick once, none lost, none late."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support.servers import PRODUCTS, RealServer
from tests.support.sizes import FULL
from tests.support.waiting import PATIENCE, until_sync
from veredus.wire import keys

LEASE = 5.0 if FULL else 1.5
APP = f"""
from veredus import App
app = App()
app.schedule("@every 1s", app.call("tick", queue="q"))
if __name__ == "__main__":
    import logging, sys
    logging.basicConfig(level="INFO")
    app.use(sys.argv[1])
    sys.exit(app.scheduler(lease={LEASE}).run())
"""


def _text(data: bytes | str) -> str:
    return data.decode() if isinstance(data, bytes) else data


class Consumer:
    """Takes every task away as soon as it is there, as a worker would: a tick fired twice would show twice."""

    def __init__(self, server: RealServer) -> None:
        self.seen: list[tuple[int, float]] = []
        """Each tick with its lateness in seconds."""
        self._ending = threading.Event()
        self._client = server.client()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            item = self._client.brpop(keys.pending("q"), timeout=1)
            if item is None:
                continue
            task_id = _text(item[1])
            key = keys.task("q", task_id)
            since = int(self._client.hget(key, "pending_since")) / 1e9  # type: ignore[arg-type]
            self._client.delete(key)
            tick = int(task_id.rpartition(":")[2])
            self.seen.append((tick, since - tick))

    def end(self) -> list[tuple[int, float]]:
        self._ending.set()
        self._thread.join()
        self._client.close()
        return self.seen


class Crew:
    def __init__(self, server: RealServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.client: redis.Redis = server.client()
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "clockwork.py").write_text(APP)

    def start(self) -> subprocess.Popen[bytes]:
        if FULL:
            command = [sys.executable, "-m", "veredus", "scheduler", "clockwork:app", "--redis", self.server.url]
        else:
            command = [sys.executable, "clockwork.py", self.server.url]
        with (self.folder / f"log.{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def leader(self) -> subprocess.Popen[bytes] | None:
        names = list(self.client.scan_iter("asynq:veredus:scheduler_leader:*"))
        holder = self.client.get(names[0]) if names else None
        pid = int(_text(holder).split(":")[-2]) if holder else 0
        return next((one for one in self.processes if one.pid == pid and one.poll() is None), None)

    def wait_for_leader(self) -> subprocess.Popen[bytes]:
        found: subprocess.Popen[bytes] = until_sync(self.leader, what="a leader")
        return found

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.client.close()


@pytest.fixture
def crew(new_server: Callable[..., RealServer], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(new_server(product=getattr(request, "param", "valkey")), tmp_path)
    yield crew
    crew.close()


def check(seen: list[tuple[int, float]]) -> None:
    ticks = [tick for tick, _ in seen]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks))), "a tick is missing, double or out of order"
    late = sorted(lateness for _, lateness in seen)
    print(f"{len(ticks)} ticks, lateness p50 {late[len(late) // 2] * 1000:.1f} ms, max {late[-1]:.2f} s")
    assert late[0] >= 0, "a tick was early"
    assert late[-1] <= LEASE + (1 if FULL else 10)  # how long the processes of the next leader take is the machine's


SIZES = [(product, 2 if product == "valkey" else 1) for product in PRODUCTS]


@pytest.mark.crash
@pytest.mark.parametrize(("crew", "small"), SIZES, indirect=["crew"])
def test_leaders_killed_one_after_the_other_lose_no_tick(crew: Crew, small: int) -> None:
    consumer = Consumer(crew.server)
    for _ in range(3):
        crew.start()
    kills, each = (6, 10) if FULL else (small, 2)
    for _ in range(kills):
        leader = crew.wait_for_leader()
        goal = len(consumer.seen) + each
        until_sync(lambda: len(consumer.seen) >= goal, what="ticks of the leader")  # noqa: B023 - at once
        leader.kill()
        leader.wait()
        crew.start()
    crew.wait_for_leader()
    count = len(consumer.seen)
    until_sync(lambda: len(consumer.seen) > count + 1, what="ticks of the last leader")
    check(consumer.end())


@pytest.mark.crash
def test_a_leader_that_was_stopped_and_wakes_up_fires_nothing_twice(crew: Crew) -> None:
    consumer = Consumer(crew.server)
    crew.start()
    crew.start()
    until_sync(lambda: len(consumer.seen) > 1, what="the first ticks")
    stopped = crew.wait_for_leader()
    stopped.send_signal(signal.SIGSTOP)
    try:
        until_sync(lambda: crew.leader() not in (None, stopped), what="another leader")
        count = len(consumer.seen)
        until_sync(lambda: len(consumer.seen) > count, what="ticks of the other leader")
    finally:
        stopped.send_signal(signal.SIGCONT)
    count = len(consumer.seen)
    until_sync(lambda: len(consumer.seen) > count + 2, what="ticks after both were awake")
    assert crew.leader() not in (None, stopped)
    check(consumer.end())


def test_a_leader_that_stops_hands_over_at_once(crew: Crew) -> None:
    consumer = Consumer(crew.server)
    crew.start()
    first = crew.wait_for_leader()
    until_sync(lambda: consumer.seen, what="the first tick")
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    assert not list(crew.client.scan_iter("asynq:veredus:*"))
    assert not list(crew.client.scan_iter("asynq:schedulers*"))
    crew.start()
    crew.wait_for_leader()
    count = len(consumer.seen)
    until_sync(lambda: len(consumer.seen) > count + 1, what="ticks of the second")
    check(consumer.end())
