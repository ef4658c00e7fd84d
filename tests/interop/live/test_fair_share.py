"""A queue that a live Go server and a Veredus worker serve with the same handlers, and that is mostly empty."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoPeer, go_peer
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.sizes import FULL
from tests.support.waiting import until
from veredus import App, Job
from veredus.model.go_share import GoShare
from veredus.worker.roles import go_watcher

pytestmark = VALKEY_ONLY

TASKS, PAUSE = (300, 0.1) if FULL else (100, 0.05)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_watcher, "INTERVAL", 0.3)


class Fleet:
    """Whoever runs a task, when it was sent and when it began."""

    def __init__(self, url: str, peer: GoPeer) -> None:
        self.app, self.peer = App(url), peer
        self.here: list[tuple[float, float]] = []

        @self.app.handler("both:work", queue="shared")
        async def work(job: Job) -> None:
            self.here.append((job.json()["sent"], time.time()))

    @property
    def there(self) -> list[tuple[float, float]]:
        known = [fact for fact in self.peer.began if b"sent" in fact["payload"]]
        return [(json.loads(fact["payload"])["sent"], fact["at"]) for fact in known]

    async def send(self, tasks: int = TASKS, pause: float = PAUSE) -> None:
        for _ in range(tasks):
            await self.app.enqueue("both:work", {"sent": time.time()}, queue="shared")
            await asyncio.sleep(pause)

    async def all_ran(self, tasks: int = TASKS) -> None:
        await until(lambda: len(self.here) + len(self.there) >= tasks, seconds=60)

    def waits(self, runs: list[tuple[float, float]]) -> str:
        waits = sorted(began - sent for sent, began in runs)
        return f"p50 {waits[len(waits) // 2] * 1000:.1f} ms, p99 {waits[int(len(waits) * 0.99)] * 1000:.1f} ms"


async def shares(worker: Any) -> None:
    """The worker has seen that Go serves the queue, too."""
    await until(lambda: worker._roles.processor._shares["shared"].percent == 50)


async def test_go_gets_its_share_of_a_queue_that_is_mostly_empty(program: Path, url: str, redis_client: Any) -> None:
    """left-for-go. Go polls three times as often as by default, because it is not shown what a busy machine lets it
    miss."""
    async with go_peer(program, url) as peer:
        fleet = Fleet(url, peer)
        async with fleet.app as app:
            await peer.serve("both:work", queue="shared", concurrency=10, check_ms=300)
            async with app.worker("shared", concurrency=10, **FAST) as worker:
                await shares(worker)
                tried = 0
                while not worker._roles.processor._shares["shared"].runs_in_go("both:work"):
                    await fleet.send(1)
                    tried += 1
                await fleet.all_ran(tried)
                first_here, first_there = len(fleet.here), len(fleet.there)
                await fleet.send()
                await fleet.all_ran(tried + TASKS)
    assert len(fleet.here) + len(fleet.there) == tried + TASKS, "none twice"
    here, there = fleet.here[first_here:], fleet.there[first_there:]
    print(f"\n{tried} tasks until Go had run one of this type; of the {TASKS} after that Go ran {len(there)}", end=" ")
    print(f"({fleet.waits(there)}), Veredus {len(here)} ({fleet.waits(here)})")
    assert 0.25 * TASKS <= len(there) <= 0.75 * TASKS
    assert max(began - sent for sent, began in [*here, *there]) < 5, "no task waits much longer than Go's poll takes"
    assert await Look(redis_client, "shared").counters() == (tried + TASKS, 0)
    assert await check_invariant(redis_client) == []


async def test_without_the_setting_the_one_that_does_not_poll_gets_nearly_all(program: Path, url: str) -> None:
    async with go_peer(program, url) as peer:
        fleet = Fleet(url, peer)
        async with fleet.app as app:
            await peer.serve("both:work", queue="shared", concurrency=10, check_ms=1000)
            async with app.worker("shared", concurrency=10, share_with_go=False, **FAST):
                await fleet.send()
                await fleet.all_ran()
    here, there = fleet.here, fleet.there
    print(f"\nof {TASKS} tasks Go ran {len(there)}, Veredus {len(here)} ({fleet.waits(here)})")
    assert len(there) < 0.1 * TASKS


@pytest.mark.parametrize("how", ["dead", "busy"])
async def test_a_go_server_that_takes_nothing_holds_tasks_up_once(program: Path, url: str, how: str) -> None:
    """Nothing is left for it after the first that it did not take in time."""
    async with go_peer(program, url) as peer:
        fleet = Fleet(url, peer)
        async with fleet.app as app:
            await peer.serve("both:work", "go:long", queue="shared", concurrency=1, check_ms=100)
            if how == "busy":
                await app.enqueue("go:long", {"behave": "sleep", "ms": 15_000}, queue="shared")
                await until(lambda: peer.began)
            async with app.worker("shared", concurrency=10, **FAST) as worker:
                await shares(worker)
                if how == "dead":
                    await peer.kill()
                stopped = time.time()
                await fleet.send(100, 0.05)
                await until(lambda: len(fleet.here) == 100)
                late = [sent - stopped for sent, began in fleet.here if began - sent > 1.0]
                print(f"\n{len(late)} of 100 tasks waited for a Go server that was {how}: {fleet.waits(fleet.here)}")
                assert max(late, default=0.0) < 3.0
            if how == "busy":
                await peer.kill()


async def test_one_task_of_a_type_that_go_does_not_know_is_left_to_it_at_most(
    program: Path, url: str, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it Go takes what it finds by chance: how much that is depends on how busy the machine is."""
    left: set[str] = set()
    answered = GoShare.answered

    def note(share: GoShare, rows: Any, rest: Iterable[tuple[str, str]], now: float) -> None:
        rest = list(rest)
        left.update(task_id for task_id, _ in rest)
        answered(share, rows, rest, now)

    monkeypatch.setattr(GoShare, "answered", note)
    async with go_peer(program, url) as peer:
        fleet = Fleet(url, peer)
        async with fleet.app as app:
            await peer.serve("go:other", queue="shared", concurrency=10, check_ms=200, retry_ms=300)
            async with app.worker("shared", concurrency=10, **FAST) as worker:
                await shares(worker)
                await fleet.send()
                await until(lambda: len(fleet.here) == TASKS, seconds=60)
    processed, failed = await Look(redis_client, "shared").counters()
    print(f"\n{len(left)} of {TASKS} tasks was left for Go, which had no handler for {failed}")
    assert processed - failed == TASKS
    assert len(left) == 1, "the trial"
    assert await check_invariant(redis_client) == []
