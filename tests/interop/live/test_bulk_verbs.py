"""Go's inspector runs, archives and deletes everything that waits, also what only we know the reason of."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.interop.live.rows import key
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Handle, Job, Limit, current

pytestmark = VALKEY_ONLY
KEYS = ("order_key", "limit_key")
SETTINGS: dict[str, Any] = {**FAST, "janitor_interval": 0.3}


class Side:
    """Tasks that wait for an order key, a limit, a due time and an event. Handlers end when `may_end` is set."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.app.limit("shared", Limit(concurrency=1, per="key"))
        self.began: list[str] = []
        self.ended: list[str] = []
        self.together: Counter[str] = Counter()
        self.overlaps: list[str] = []
        self.may_end = asyncio.Event()

        @self.app.handler("py:*", queue="shared")
        async def work(job: Job) -> None:
            by = job.payload.decode()
            self.began.append(job.id)
            self.together[by] += 1
            if by in KEYS and self.together[by] > 1:
                self.overlaps.append(job.id)
            try:
                await self.may_end.wait()
            finally:
                self.together[by] -= 1
            self.ended.append(job.id)

        @self.app.handler("durable", queue="shared")
        async def waits(job: Job) -> None:
            self.began.append(job.id)
            await current().wait_for(job.payload.decode())
            self.ended.append(job.id)

    async def send(self, event: str) -> dict[str, list[Handle[Any]]]:
        """Three of each key, of which one runs and two wait; a delayed one; and one that waits for an event."""
        sent = {
            name: [
                await self.app.enqueue("py:work", name.encode(), queue="shared", **{name: name})  # type: ignore[arg-type]
                for _ in range(3)
            ]
            for name in KEYS
        }
        sent["delay"] = [await self.app.enqueue("py:work", b"delay", queue="shared", delay=3600)]
        sent["durable"] = [await self.app.enqueue("durable", event.encode(), queue="shared")]
        return sent


@pytest.mark.parametrize("verb", ["run_all", "archive_all", "delete_all"])
async def test_all_that_waits_is_run_archived_or_deleted_by_go(
    program: Path, url: str, redis_client: Any, verb: str
) -> None:
    """Also rows order-lanes, limits-keys, durable-tasks and due-index of docs/asynq-differences.md."""
    side, look = Side(url), Look(redis_client, "shared")
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **SETTINGS):
        sent = await side.send("one")
        (durable,), (delayed,) = sent["durable"], sent["delay"]
        await until(lambda: _scheduled(redis_client, 6))
        running = [handle.id for name in KEYS for handle in sent[name][:1]]
        await until(lambda: {*side.began} == {*running, durable.id})
        assert await peer.do(verb, queue="shared", state="scheduled") == 6
        side.may_end.set()
        await until(lambda: {*running} <= {*side.ended})
        if verb == "archive_all":
            assert {row["id"] for row in await peer.list("shared", "archived")} == {
                *[handle.id for name in KEYS for handle in sent[name][1:]],
                durable.id,
                delayed.id,
            }
            assert await peer.do("run_all", queue="shared", state="archived") == 6
        if verb != "delete_all":
            waiting = [handle.id for name in (*KEYS, "delay") for handle in sent[name]]
            await until(lambda: sorted(side.ended) == sorted(waiting))
            await look.ends(durable.id, "scheduled")
            await app.emit("one")
            await look.ends(durable.id, "gone")
            assert side.began.count(durable.id) == 2, "its handler begins again only after the event"
        side.began.clear()
        again = await side.send("two")
        await until(lambda: {handle.id for name in KEYS for handle in again[name]} <= {*side.ended})
        assert side.overlaps == []
        began = [task_id for task_id in side.began if task_id in {handle.id for handle in again["order_key"]}]
        assert began == [handle.id for handle in again["order_key"]]
        for handle in (*again["delay"], *again["durable"]):
            await look.ends(handle.id, "scheduled")
            await peer.do("delete", queue="shared", id=handle.id)
        await until(lambda: _tidy(redis_client))
    assert await check_invariant(redis_client) == []


async def _scheduled(client: Any, number: int) -> bool:
    return bool(await client.zcard(key("scheduled")) == number)


async def _tidy(client: Any) -> bool:
    """No key of ours that tells of a task is left."""
    names = [name.decode().partition("}:")[2] for name in await client.keys("asynq:{shared}:*")]
    ours = ("due", "lane", "limited", "waiting", "waits", "slots", "t:")
    return not any(name.startswith(ours) for name in names)
