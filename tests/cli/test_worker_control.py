"""`veredus worker list`, `quiet` and `stop`, with workers in other processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Shop
from tests.cli.support import Command
from tests.support.waiting import PATIENCE, until_sync
from veredus import __version__
from veredus.store.store import Store, connect
from veredus.wire import keys
from veredus.wire.presence import ServerRecord

GO = ServerRecord(
    host="gopher", pid=7, server_id="e" * 36, concurrency=10, queues={"default": 1}, strict_priority=False,
    status="active", started_at=1e9, active_worker_count=0,
)  # fmt: skip


def _listed(veredus: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = veredus.do("worker list --json").json
    return found


def test_a_worker_elsewhere_takes_no_more_tasks_and_then_finishes_and_stops(
    shop: Shop, veredus: Command, send: Callable[..., Any]
) -> None:
    process = shop.start("--lease", "1")
    running = send("wait", {})
    until_sync(lambda: "waits" in shop.notes())
    [worker] = until_sync(lambda: [one for one in _listed(veredus) if one["active_workers"]])
    assert (worker["pid"], worker["status"], worker["version"]) == (process.pid, "active", __version__)
    assert 10 < worker["memory_mb"] < 2000
    table = veredus.do("worker list").out
    assert all(part in table for part in (worker["id"][:8], __version__, "1/100", f"{worker['memory_mb']} MB"))

    told = veredus("worker", "quiet", worker["id"][:6])
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{worker['host']}:{process.pid} {worker['id']}: takes no more tasks; running: 1\n"
    late = send("quick", {"n": 1})
    [told] = veredus("worker", "stop", f"{worker['host']}:{process.pid}", "--json").json
    assert (told["asked"], told["status"]) == ("stop", "stopped")
    assert process.poll() is None, "the running task goes on"
    (shop.folder / "gate").touch()
    assert process.wait(PATIENCE) == 0
    assert (running.status_sync().state, late.status_sync().state) == ("gone", "pending")
    assert _listed(veredus) == []
    assert not shop.client.keys("asynq:details*")
    veredus("worker", "stop", worker["id"]).refused(1, "no worker process", worker["id"])


def test_a_frozen_worker_reads_the_request_when_it_runs_again(shop: Shop, veredus: Command) -> None:
    process = shop.start("--lease", "1")
    [worker] = until_sync(lambda: _listed(veredus))
    os.kill(process.pid, signal.SIGSTOP)
    veredus("worker", "stop", worker["id"], "--wait", "0.3").refused(
        1, "has not reacted to stop within 0.3 s", "frozen"
    )
    assert "asked" in veredus("worker", "quiet", worker["id"], "--wait", "0").out
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(PATIENCE) == 0


def test_servers_that_read_no_requests_are_refused_with_the_signal_to_send(veredus: Command) -> None:
    async def show(*, with_types: bool) -> None:
        store = Store(connect(veredus.url))
        await store.presence.beat(GO, {})
        identity = (GO.host, GO.pid, GO.server_id)
        gone = [keys.details(*identity)] + ([] if with_types else [keys.types(*identity)])
        await store.redis.command("DEL", *gone, key=gone[0])
        await store.close()

    asyncio.run(show(with_types=False))
    [shown] = _listed(veredus)
    assert not {"version", "memory_mb", "asked"} & set(shown)
    veredus("worker", "quiet", "gopher:7").refused(
        2, "gopher:7", "Go servers take no requests", "kill -TSTP 7", "gopher"
    )
    veredus("worker", "stop", "eeee").refused(2, "eeee", "Go servers take no requests", "kill -TERM 7")
    asyncio.run(show(with_types=True))
    veredus("worker", "stop", "eeee").refused(2, "earlier versions take no requests", "kill -TERM 7")


def test_an_app_in_a_module_with_the_name_of_a_command_is_still_started(shop: Shop) -> None:
    Path(shop.folder / "stop.py").write_text("from veredus import App\napp = App()\n")
    assert shop.run("worker", "stop:app", "--burst").returncode == 0
    assert shop.run("worker", "--burst", "shop:app").returncode == 0, "options may come first"
