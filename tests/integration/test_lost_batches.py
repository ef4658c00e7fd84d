"""A dequeue whose answer is lost: what it handed out runs once, and does not count as lost with its worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.proxy import Proxy, proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import pause_sync, until
from veredus import App
from veredus.store.tasks.work import DEQUEUE
from veredus.wire import keys
from veredus.worker.worker import Worker

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]

QUEUES = {"a": 3, "b": 2, "c": 1}


class Lossy:
    """A worker of three queues behind a proxy, with room for four handlers."""

    def __init__(self, proxy: Proxy, producer: App, worker: Worker) -> None:
        self.proxy, self.producer, self.worker = proxy, producer, worker
        self.ran: list[str] = []
        self.gate = asyncio.Event()

    async def add(self, queue: str, *names: str, kind: str = "note") -> None:
        """Tasks that have no retries: one that counts as lost ends in the archive."""
        for name in names:
            await self.producer.enqueue(kind, {"name": name}, queue=queue, max_retry=0)

    def lose(self, times: int, marker: str) -> None:
        """Lose the answers to the next requests with this text."""
        self.proxy.marker, self.proxy.lose_reply = marker.encode(), times

    def lose_of(self, queue: str, times: int) -> None:
        self.lose(times, keys.batch(queue, self.worker.worker_id))

    async def all_ran(self, *names: str) -> None:
        await until(lambda: sorted(self.ran) == sorted(names), what=f"{names}, not {self.ran}")


@asynccontextmanager
async def _lossy(server: RealServer, look: Look, **settings: Any) -> AsyncIterator[Lossy]:
    async with proxy_before(server.socket) as proxy:
        app, producer = App(proxy.url), App(server.url)
        lossy = Lossy(proxy, producer, app.worker(**(FAST | {"queues": QUEUES, "concurrency": 4} | settings)))

        @app.task(name="note")
        async def note(name: str) -> None:
            lossy.ran.append(name)

        @app.task(name="wait")
        async def wait(name: str) -> None:
            lossy.ran.append(name)
            await lossy.gate.wait()

        async with lossy.worker:
            # The scripts are loaded then, so that what gets lost is the answer of a dequeue.
            for queue in QUEUES:
                await lossy.add(queue, queue)
            await lossy.all_ran(*QUEUES)
            lossy.ran.clear()
            await until(lambda: lossy.worker._roles.processor.all_empty and not lossy.worker._in_flight.held())
            yield lossy
            lossy.gate.set()
        for queue in QUEUES:
            assert await look.of(queue).scores("archived") == {}
            assert await look.of(queue).active() == []
        assert lossy.proxy.lose_reply == 0
        await app.close()
        await producer.close()


@pytest.mark.parametrize("strict", [False, True], ids=["weighted", "strict"])
@pytest.mark.parametrize("times", [1, 3], ids=["once", "three times"])
async def test_tasks_of_a_lost_batch_run_though_other_queues_have_work_for_every_slot(
    server: RealServer, look: Look, strict: bool, times: int
) -> None:
    """Room is kept for them: else their lease would end while others run, and each would count as a lost attempt."""
    async with _lossy(server, look, strict=strict) as lossy:
        lossy.lose_of("b", times)
        await lossy.add("b", "b1")
        await until(lambda: lossy.proxy.lose_reply < times)
        waiting = [f"a{number}" for number in range(8)]
        await lossy.add("a", *waiting, kind="wait")
        await until(lambda: "b1" in lossy.ran)
        assert lossy.worker._in_flight.busy <= 4
        lossy.gate.set()
        await lossy.all_ran("b1", *waiting)


@pytest.mark.parametrize("pass_on", [0, 40, 150], ids=["all of it", "nearly all", "in the middle"])
async def test_an_answer_of_several_queues_that_is_lost_or_cut(server: RealServer, look: Look, pass_on: int) -> None:
    async with _lossy(server, look) as lossy:
        processor = lossy.worker._roles.processor
        lossy.proxy.pass_on = pass_on
        lossy.lose(2, DEQUEUE.sha)
        for queue in QUEUES:
            await lossy.add(queue, f"{queue}1", f"{queue}2")
            processor.found(queue)
        await lossy.all_ran(*[f"{queue}{number}" for queue in QUEUES for number in (1, 2)])


async def test_a_worker_that_stands_still_after_it_lost_an_answer(server: RealServer, look: Look) -> None:
    """It stood still for longer than the lease: the batch is asked for before anybody calls it lost."""
    async with _lossy(server, look) as lossy:
        lossy.lose_of("b", 1)
        await lossy.add("b", "b1", "b2")
        await until(lambda: lossy.worker._roles.processor._unanswered)
        pause_sync(2 * FAST["lease"], proves="nobody takes the batch for lost")
        await lossy.all_ran("b1", "b2")


async def test_a_worker_that_stops_after_it_lost_an_answer(server: RealServer, look: Look) -> None:
    async with _lossy(server, look) as lossy:
        lossy.lose_of("b", 1)
        await lossy.add("b", "b1", "b2", "b3")
        await until(lambda: lossy.worker._roles.processor._unanswered)
        await lossy.worker.stop()
        assert await look.of("b").active() == []
        assert len(lossy.ran) + len(await look.of("b").pending()) == 3, "what it had not seen has run or was given back"


async def test_room_is_not_kept_for_ever(server: RealServer, look: Look) -> None:
    """The node that has one of the queues may be away for long: what was handed out there is recovered by others."""
    async with _lossy(server, look) as lossy:
        processor = lossy.worker._roles.processor
        lossy.lose_of("b", 1)
        await lossy.add("b", "b1", "b2")
        await until(lambda: processor._unanswered)
        question, _ = processor._unanswered["b"]
        room, processor._most = processor._free_slots().loop, 4
        assert (room, processor._free_now().loop) == (4, 4 - question.request.wanted)
        processor._unanswered["b"] = processor._unanswered["b"]._replace(until=0.0)
        assert processor._free_now().loop == 4
        await lossy.all_ran("b1", "b2")
