"""Masters that go, gracefully or by kill -9, under load: what a replica had is not lost, and everybody goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.cluster.load import Load
from tests.crash.fleet import say
from tests.integration.support import FAST
from tests.support.clusters import Nodes
from tests.support.sentinels import Sentinels
from tests.support.servers import RealServer
from tests.support.sizes import size
from tests.support.waiting import until, until_sync
from veredus import App, Handle, StoreError, current
from veredus.inspector.inspector import Inspector
from veredus.store.connection.slot_map import slot_of
from veredus.wire import keys

ROUNDS = size(1, 5)
LOAD = size(60, 600)
"""Tasks that run before each failover."""
RARELY = {**FAST, "forward_interval": 30.0}
"""Delayed tasks are on time only if the forwarder hears of them."""


class Hearing:
    """What a worker logged about outages."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "veredus")

    def lines(self, text: str) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if text in record.getMessage()]


async def _check(load: Load, queues: list[str], began: float, tasks: list[asyncio.Task[None]]) -> None:
    """After the failovers: nothing replicated is missing, and everything works as before."""
    await load.grows(20)
    load.stop()
    await asyncio.gather(*tasks)
    await load.all_ran()
    for queue in queues:  # asleep, woken by what comes, and by what becomes due
        soon = await load.work.using(queue=queue).enqueue(0)
        later = await load.work.using(queue=queue, delay=0.5).enqueue(time.time() + 0.5)
        await until(lambda soon=soon: load.ran[soon.id], seconds=4.0, what="a wake-up, before the wait of 5 s is over")
        await until(lambda later=later: load.ran[later.id])
        assert load.lateness[later.id] < 3.0, "the wake-up channel is heard again"
    say(f"{load.report()}; {time.monotonic() - began:.1f} s in all")
    assert len(load.replicated | load.confirmed) > 50
    async with load.app.inspector() as inspector:
        assert [one for one in await inspector.doctor.diagnose(server=False) if one.repairable] == []


def _schedule(load: Load, queue: str) -> list[int]:
    """A schedule that fires once a second, and the ticks that became tasks."""
    ticks: list[int] = []

    @load.app.task(name="tick")
    async def tick() -> None:
        ticks.append(int(current().id.rpartition(":")[2]))

    load.app.schedule("@every 1s", tick.using(queue=queue).call())
    return ticks


@pytest.mark.timeout(size(150, 600))
@pytest.mark.parametrize("how", ["kill", "graceful"])
async def test_through_a_sentinel_failover(
    new_sentinels: Callable[..., Sentinels], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    # With two replicas, one may confirm what the other, which becomes the master, has not got.
    replicas = 2 if how == "graceful" else 1
    sentinels = new_sentinels(replicas=replicas)
    hearing, began = Hearing(caplog), time.monotonic()
    queues = ["a", "b"]
    now = [sentinels.master()]
    unsure: set[int] = set()
    load = Load(sentinels.url, queues, lambda queue: now[0], replicas=replicas, **RARELY)
    ticks = _schedule(load, "a")
    async with load.app, load.worker():
        tasks = [asyncio.create_task(load.produce(queue)) for queue in ("a", "b")]
        tasks.append(asyncio.create_task(load.produce("b", delay=0.4)))
        tasks += [asyncio.create_task(load.produce(queue, durability="replica", pause=0.0)) for queue in queues]
        for number in range(ROUNDS):
            await load.grows(LOAD)
            old, gone_at = now[0], time.time()
            if how == "kill":
                old.kill()
            else:
                sentinels.fail_over()
            now[0] = await asyncio.to_thread(sentinels.wait_for_master_other_than, old)
            if how == "graceful":
                # For eight seconds yet it says that it is a master, and what it is given then is lost.
                await until(lambda old=old: not _clients(old), seconds=5.0, what="everybody's leave of the old master")
            # The old master may not have passed on a tick that it was given just before it went.
            unsure.update(range(int(gone_at) - 1, int(time.time()) + 1 if how == "graceful" else int(gone_at) + 1))
            await load.grows(20)
            if number < ROUNDS - 1:
                await asyncio.to_thread(_make_replica, old, now[0])
        await _check(load, queues, began, tasks)
        seconds = set(ticks)
        assert len(seconds) >= 2
        assert set(range(min(seconds), max(seconds) + 1)) - seconds <= unsure, "each tick, also those meanwhile"
    assert len(hearing.lines("Redis is not available")) <= ROUNDS + 1
    assert len(hearing.lines("schedules wait for Redis")) <= ROUNDS


def _clients(server: RealServer) -> list[str]:
    """Ours that are connected to it."""
    try:
        return [one["name"] for one in server.client().client_list() if one["name"].startswith("veredus")]
    except redis.ConnectionError:  # the sentinels cut all connections when they turn it into a replica
        return ["unknown"]


def _make_replica(old: RealServer, new: RealServer) -> None:
    if not old.alive():
        old.start()
        old.client().execute_command("REPLICAOF", "127.0.0.1", new.port)
    _is_replica_of(old, new)


def _is_replica_of(old: RealServer, new: RealServer) -> None:
    def follows() -> bool:
        try:
            info = old.client().info("replication")
        except redis.ConnectionError:
            return False
        return (info["role"], info.get("master_port"), info.get("master_link_status")) == ("slave", new.port, "up")

    until_sync(follows, what="the old master as a replica")


@pytest.mark.timeout(size(150, 600))
@pytest.mark.parametrize("how", size(["kill", "graceful"], ["kill", "graceful", "takeover"]))
async def test_through_a_failover_in_a_cluster(
    new_nodes: Callable[..., Nodes], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other masters' queues go on meanwhile, and nobody waits for the one that is gone."""
    nodes = new_nodes("--cluster-require-full-coverage", "no", replicas=True, node_timeout=1000)
    hearing, began = Hearing(caplog), time.monotonic()
    queues = nodes.spread(6)
    masters = {node: nodes.servers[node] for node in range(3)}
    spare = {node: nodes.servers[node + 3] for node in range(3)}

    def master(queue: str) -> RealServer:
        return masters[min(slot_of(keys.pending(queue)) * 3 // 16384, 2)]

    load = Load(nodes.url, queues, master, **RARELY)
    ticks = _schedule(load, queues[0])
    steady = queues[1]
    async with load.app, load.worker():
        tasks = [asyncio.create_task(load.produce(queue)) for queue in queues]
        tasks.append(asyncio.create_task(load.produce(queues[0], delay=0.4)))
        for number in range(ROUNDS):
            await load.grows(LOAD)
            old, new = masters[0], spare[0]
            if how == "kill":
                old.kill()
            else:
                arguments = ["TAKEOVER"] if how == "takeover" else []
                new.client().execute_command("CLUSTER", "FAILOVER", *arguments)
            on_others = [one for one, queue in load.acknowledged.items() if queue == steady]
            await asyncio.to_thread(until_sync, lambda new=new: _role(new) == "master", what="a master")
            masters[0], spare[0] = new, old
            while_away = [one for one, queue in load.acknowledged.items() if queue == steady][len(on_others) :]
            if how == "kill":
                assert len(while_away) >= 3, "the others did not wait for it"
            await load.grows(20)
            await until(lambda new=new: _ran_on(load, queues[0], new))
            if number < ROUNDS - 1:
                if how == "kill":
                    old.start()
                await asyncio.to_thread(_is_replica_of, old, new)
        await _check(load, queues, began, tasks)
        seconds = list(ticks)
        assert sorted(set(seconds)) == list(range(min(seconds), max(seconds) + 1)), "each tick, also those meanwhile"
    assert len(hearing.lines("Redis is not available")) <= ROUNDS + 1


def _role(server: RealServer) -> str:
    return str(server.client().info("replication")["role"])


def _ran_on(load: Load, queue: str, server: RealServer) -> bool:
    return bool(server.client().exists(keys.processed(queue)))


async def test_a_node_that_hangs_holds_up_only_its_own_queues(new_nodes: Callable[..., Nodes]) -> None:
    """No replica takes over: the queues of that node wait, those of the others never notice."""
    nodes = new_nodes("--cluster-require-full-coverage", "no", node_timeout=1000)
    queues = nodes.spread(6)
    app = App(nodes.url, patience=0.2)
    ran: list[str] = []
    late: list[float] = []
    go = asyncio.Event()

    @app.task
    async def note(due: float) -> None:
        ran.append(current().queue)
        if due:
            late.append(time.time() - due)

    @app.task(max_retry=0)
    async def hold() -> None:
        ran.append("hold")
        await go.wait()

    worker = app.worker(queues, lease=6.0, sweep=0.5)
    async with app, worker:
        for queue in queues:
            await note.using(queue=queue).enqueue(0)
        await until(lambda: len(ran) == 6)
        needed = {min(slot_of(one) * 3 // 16384, 2) for one in (keys.QUEUES, keys.CANCEL_CHANNEL)}
        hung = next(node for node in range(3) if node not in needed)
        alive = [queue for n, queue in enumerate(queues) if n % 3 != hung]
        there = next(queue for queue in queues if queue not in alive)
        held = [await hold.using(queue=queue).enqueue() for queue in alive]
        await until(lambda: ran.count("hold") == len(alive))
        async with app.inspector() as inspector:
            await inspector.pause(there)
        await note.using(queue=there).enqueue(0)  # the worker asks for it every second: also while the node hangs
        nodes.servers[hung].freeze()
        frozen = time.monotonic()
        latencies = []
        while time.monotonic() - frozen < HANGS:
            for queue in alive:
                began, before = time.monotonic(), ran.count(queue)
                await note.using(queue=queue).enqueue(0)
                await until(lambda queue=queue, before=before: ran.count(queue) > before)
                latencies.append(time.monotonic() - began)
                await note.using(queue=queue, delay=0.2).enqueue(time.time() + 0.2)
        say(
            f"with one node hanging for {HANGS} s: pick-up at most {max(latencies) * 1000:.0f} ms, "
            f"delayed tasks late by at most {max(late) * 1000:.0f} ms on the others"
        )
        assert max(latencies) < 2.0
        assert max(late) < 2.0
        nodes.servers[hung].thaw()
        go.set()
        async with app.inspector() as inspector:
            await until(lambda: _resumed(inspector, there))
        await until(lambda: _enqueued(note.using(queue=there)))
        await until(lambda: ran.count(there) >= 3)
        for handle in held:
            await until(lambda handle=handle: _is_gone(handle))
    assert ran.count("hold") == len(alive), "their leases were kept"


HANGS = size(4.0, 20.0)


async def _enqueued(task: Any) -> bool:
    try:
        return bool((await task.enqueue(0)).created)
    except StoreError:
        return False


async def _resumed(inspector: Inspector, queue: str) -> bool:
    try:
        await inspector.resume(queue)
    except StoreError:
        return False
    return True


async def _is_gone(handle: Handle[Any]) -> bool:
    return (await handle.status()).state == "gone"
