"""What a worker shows of itself in Redis, and the events it announces in-process."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

from tests.integration.support import FAST, Look
from tests.support.proxy import proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import until
from veredus import App
from veredus.events import Forwarded, TaskEnded, TaskStarted
from veredus.store.tasks.worker_records import BEAT, TTL
from veredus.wire import keys
from veredus.wire.messages import as_dict
from veredus.worker.config import WorkerConfig


async def test_a_worker_shows_what_it_serves_and_what_it_works_on(app: App, look: Look) -> None:
    release = asyncio.Event()

    @app.task(name="wait", timeout=60)
    async def wait(n: int) -> None:
        await release.wait()

    worker = app.worker({"default": 3, "low": 1}, **{**FAST, "lease": 0.6}, strict=True, concurrency=9)
    async with worker:
        handle = await wait.enqueue(1)
        identity = (socket.gethostname(), os.getpid(), worker.worker_id)

        async def shown() -> dict[str, Any] | None:
            data = await look.client.get(keys.server(*identity))
            info = as_dict("ServerInfo", data) if data else {}
            return info if info.get("active_worker_count") == 1 else None

        info = await until(shown)
        assert (info["host"], info["pid"], info["server_id"]) == identity
        assert (info["concurrency"], dict(info["queues"]), info["strict_priority"]) == (
            9,
            {"default": 3, "low": 1},
            True,
        )
        assert info["status"] == "active"
        assert 0 < await look.client.ttl(keys.server(*identity)) <= 10
        working = await look.client.hgetall(keys.workers(*identity))
        assert list(working) == [handle.id.encode()]
        row = as_dict("WorkerInfo", working[handle.id.encode()])
        assert (row["task_id"], row["task_type"], row["queue"], row["task_payload"]) == (
            handle.id,
            "wait",
            "default",
            b'{"n":1}',
        )
        assert 59 <= row["deadline"].seconds - row["start_time"].seconds <= 61
        assert await look.client.zrange(keys.SERVERS, 0, -1) == [keys.server(*identity).encode()]
        worker.quiet()

        async def stopped() -> bool:
            info = as_dict("ServerInfo", await look.client.get(keys.server(*identity)))
            return bool(info["status"] == "stopped")

        await until(stopped)
        release.set()
        await look.ends(handle.id, "gone")
        await until(lambda: _nobody(look, identity))


async def _nobody(look: Look, identity: tuple[str, int, str]) -> bool:
    return not await look.client.hgetall(keys.workers(*identity))


@VALKEY_ONLY
async def test_a_beat_that_failed_is_repeated_soon(server: RealServer, redis_client: Any) -> None:
    """Not when the next one is due, which is after 20 minutes here: so one that fails does not hide the worker."""
    async with proxy_before(server.socket) as proxy:
        proxy.marker, proxy.lose_request = BEAT.sha.encode(), 3
        app = App(proxy.url)
        async with app.worker({"default": 1}, lease=3600):
            await until(lambda: redis_client.exists(keys.SERVERS), what="the fourth beat, the first that gets there")
            assert proxy.lose_request == 0
        await app.close()
    assert 2 * WorkerConfig().beat + 0.5 < TTL, "the record outlives one beat that did not come"


async def test_events_tell_what_happened_and_a_listener_that_raises_disturbs_nobody(app: App, look: Look) -> None:
    events: list[Any] = []

    ran: list[float] = []

    @app.task(name="fails", retry_delay=0.05)
    async def fails_once() -> None:
        ran.append(time.time())
        if not [event for event in events if isinstance(event, TaskEnded)]:
            raise ValueError("boom")

    def broken(event: Any) -> None:
        raise RuntimeError("a listener's own problem")

    worker = app.worker(**FAST)
    worker.bus.subscribe(broken)
    worker.bus.subscribe(events.append)
    async with worker:
        handle = await fails_once.enqueue()
        await look.ends(handle.id, "gone")
        await until(lambda: len([event for event in events if isinstance(event, TaskEnded)]) == 2)
        await until(lambda: [event for event in events if isinstance(event, Forwarded)])
    attempts = [type(event) for event in events if not isinstance(event, Forwarded)]
    assert attempts == [TaskStarted, TaskEnded, TaskStarted, TaskEnded]
    [forwarded] = [event for event in events if isinstance(event, Forwarded)]
    assert (forwarded.queue, forwarded.moved) == ("default", 1)
    assert forwarded.late is None or 0 <= forwarded.late < ran[1] - ran[0]
    first, second = (event for event in events if isinstance(event, TaskEnded))
    assert (first.end, first.action, str(first.error)) == ("failed", "retry", "boom")
    assert (second.end, second.action, second.error) == ("succeeded", "done", None)
    assert second.seconds >= 0
