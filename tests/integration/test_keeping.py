"""A supervisor keeps the leases of a process that stands still: only its own, and only while its tasks have time."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.support import Look, go_message
from tests.support.servers import VALKEY_ONLY
from veredus import App
from veredus.model.settlement import Done
from veredus.store.store import Store
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.work import Work
from veredus.wire.messages import encode_task
from veredus.worker import lease_keeper
from veredus.worker.config import WorkerConfig
from veredus.worker.lease_keeper import is_stopped, keep_leases
from veredus.worker.shared_beat import Beat, entry_of

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]

CONFIG = WorkerConfig(lease=600.0, deadline_grace=3.0)


async def _taken(store: Store, worker: str, **timeouts: int) -> str:
    """Tasks that a worker has just taken, by id; the owner."""
    for task_id, timeout in timeouts.items():
        message = go_message("t", task_id=task_id)
        message.timeout = timeout
        await store.intake.add_many("default", [NewTask(task_id, encode_task(message))])
    return (await Work(store.redis, worker, lease_ms=1000).dequeue("default", len(timeouts))).owner


async def test_each_lease_is_renewed_until_its_own_deadline_and_grace_and_no_longer(
    app: App, store: Store, look: Look
) -> None:
    await _taken(store, "worker-a", known=1800, late=1800, over=1800, unknown=100, short=1)
    before = await look.scores("lease")
    now, wall = time.monotonic(), time.time()
    ends = {"known": now + 5000, "late": now + 50, "over": now - 1}
    beat = Beat(now - 300, {entry_of("default", name): end for name, end in ends.items()}, False)
    kept = await keep_leases(app, CONFIG, ["default"], "worker-a", beat)
    after = await look.scores("lease")
    assert after["known"] - wall == pytest.approx(600, abs=5)
    assert after["late"] - wall == pytest.approx(50, abs=5)
    # It began after the last beat, 300 s ago, and before the next one, 200 s later.
    assert after["unknown"] - wall == pytest.approx(100 - 300 + 200 + 3, abs=5)
    assert (after["over"], after["short"]) == (before["over"], before["short"])
    assert kept.until == pytest.approx(now + 5000)
    assert sorted(kept.tasks) == ["known (t)", "late (t)", "over (t)", "short (t)", "unknown (t)"]


async def test_the_worker_can_settle_what_was_kept_for_it(app: App, store: Store, look: Look) -> None:
    owner = await _taken(store, "worker-a", a=1800)
    await keep_leases(app, CONFIG, ["default"], "worker-a", Beat(time.monotonic(), {}, False))
    assert await Work(store.redis, "worker-a", lease_ms=1000).settle("default", [Done("a", owner)]) == []
    assert await look.state("a") == "gone"


async def test_what_is_not_its_own_any_more_is_left_alone(app: App, store: Store, look: Look) -> None:
    await _taken(store, "worker-a", claimed=1800)
    await _taken(store, "worker-b", others=1800)
    await store.leases.recover(
        ["default"], "r:1", since={}, claim_ms=5000, dead_worker="worker-a:"
    )  # as after its death
    before = await look.scores("lease")
    kept = await keep_leases(app, CONFIG, ["default"], "worker-a", Beat(time.monotonic(), {}, False))
    assert await look.scores("lease") == before
    assert kept.tasks == []


async def test_what_cannot_be_read_is_named_and_not_waited_for(
    app: App, store: Store, look: Look, redis_client: Any
) -> None:
    await _taken(store, "worker-a", broken=1800)
    await redis_client.hset(look.task("broken"), "msg", b"\xff")
    before = await look.scores("lease")
    kept = await keep_leases(app, CONFIG, ["default"], "worker-a", Beat(time.monotonic(), {}, False))
    assert (kept.tasks, kept.until) == (["broken (undecodable)"], -math.inf)
    assert await look.scores("lease") == before


@pytest.fixture
async def silent_app() -> AsyncIterator[App]:
    """Of a server that takes connections and never answers."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    yield App(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    server.close()


async def test_a_server_that_does_not_answer_does_not_hold_up_the_supervisor(
    silent_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "LONGEST_CALL", 0.05)
    keeping_on = keep_leases(silent_app, CONFIG, ["default"], "worker-a", Beat(time.monotonic(), {}, False))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(keeping_on, 4.0)
    assert time.monotonic() - began < 3.5


def test_a_process_that_has_ended_or_runs_is_not_a_stopped_one() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not is_stopped(child.pid)
    assert not is_stopped(os.getpid())
