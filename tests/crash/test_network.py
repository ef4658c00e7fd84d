"""A worker that loses its network, and replies that get lost on their way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.crash.fleet import LEASE, QUEUE, Fleet, say
from tests.crash.proxy import Proxy
from tests.support.servers import RealServer
from tests.support.waiting import pause_sync
from veredus.store.connection.scripts import Script
from veredus.store.tasks.work import COMPLETE, DEQUEUE, DONE, RETRY
from veredus.wire import keys

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


@pytest.fixture
def proxy(durable: RealServer) -> Iterator[Proxy]:
    proxy = Proxy(durable.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("how", ["drop", "hold"])
def test_a_worker_cut_off_for_longer_than_a_lease(fleet: Fleet, proxy: Proxy, how: str) -> None:
    lonely = fleet.start(url=proxy.url, queues=f"{QUEUE},canary", concurrency=10)
    ids = fleet.enqueue(5, gate="{n}", result=True)
    fleet.wait(lambda: len(fleet.starts()) == 5, "all starts")
    other = fleet.start(concurrency=10)
    getattr(proxy, how)()
    cut_at = time.monotonic()
    fleet.open_gate("1")  # its handlers end while it cannot tell anybody
    fleet.wait(lambda: len(fleet.finishes()) == 5, "the end of its handlers")
    fleet.wait(lambda: len([f for f in fleet.starts() if f.pid == other.pid]) == 5, "the second runs")
    elsewhere = time.monotonic() - cut_at
    fleet.open_gate("2")
    fleet.wait(lambda: fleet.number_in("completed") == 5, "the other's settlements")
    fleet.wait(lambda: time.monotonic() - cut_at > 1.5 * LEASE, "the end of its leases, by its own clock")
    before = fleet.keyspace()
    proxy.restore()
    (canary,) = fleet.enqueue(options={"queue": "canary"})
    resumed = fleet.wait(lambda: fleet.finishes(canary), "its first task after the cut")
    fleet.wait(lambda: not fleet.tasks_left("canary"), "its settlement")
    fleet.wait(lambda: fleet.shown_alive(lonely.pid), "its record")
    say(f"{how}: run elsewhere after {elsewhere:.1f} s, the lonely one works again after {resumed:.1f} s")
    assert fleet.finishes(canary)[0].pid == lonely.pid
    assert fleet.keyspace() == before
    assert len(fleet.starts(*ids)) == 10
    assert {fleet.field(task_id, "result") for task_id in ids} == {f'"{other.pid}"'}
    assert (fleet.counter("processed"), fleet.counter("failed")) == (10, 5)
    assert fleet.breaches() == []


def test_a_dequeue_whose_reply_was_lost_is_neither_repeated_nor_left_behind(fleet: Fleet, proxy: Proxy) -> None:
    fleet.start(url=proxy.url, concurrency=6)
    fleet.enqueue(6)
    fleet.wait_done()
    proxy.swallow_reply_to(DEQUEUE.sha)
    ids = fleet.enqueue(8, gate="{n}")
    fleet.wait(lambda: proxy.swallowed, "the lost reply")
    took = fleet.wait(lambda: len(fleet.starts(*ids)) >= 6, "the starts")
    say(f"the tasks of the lost batch started {took:.2f} s after the reply was lost (the lease is {LEASE} s)")
    assert [fact.id for fact in fleet.starts(*ids)] == ids[:6], "in order, the same batch"
    assert (fleet.number_in("active"), fleet.number_in("pending")) == (6, 2), "no more than there are hands"
    assert fleet.redis.zcard(keys.lease(QUEUE)) == 6
    pause_sync(2 * min(LEASE, 3.0), proves="no recoverer takes the repeated batch for lost")
    assert len(fleet.starts(*ids)) == 6
    fleet.open_gate("1")
    fleet.wait_done()
    assert len(fleet.starts(*ids)) == 8
    assert "lost its worker" not in fleet.log()
    assert (fleet.counter("processed"), fleet.counter("failed")) == (14, 0)


@pytest.mark.parametrize(
    ("script", "payload"),
    [(DONE, {}), (COMPLETE, {"result": True}), (RETRY, {"fails": 1})],
    ids=["done", "complete", "retry"],
)
def test_a_settlement_whose_reply_was_lost_is_not_run_again(
    fleet: Fleet, proxy: Proxy, script: Script, payload: dict[str, Any]
) -> None:
    fleet.start(url=proxy.url, concurrency=10)
    warm = fleet.enqueue(2, **payload)
    fleet.wait(lambda: len(fleet.finishes(*warm)) == 2, "the scripts to be loaded")
    fleet.wait(lambda: not fleet.number_in("active"), "their settlement")
    proxy.swallow_reply_to(script.sha)
    ids = fleet.enqueue(5, **payload)
    fleet.wait(lambda: proxy.swallowed, "the lost reply")
    fleet.wait(lambda: {fact.id for fact in fleet.finishes()} >= set(ids), "all ends")
    fleet.wait(lambda: not fleet.number_in("active"), "all settlements")
    fleet.wait(lambda: not fleet.number_in("retry") and not fleet.number_in("pending"), "the end")
    runs = 2 if "fails" in payload else 1
    starts = fleet.starts(*ids)
    say(f"{len(starts)} starts of 5 tasks, processed {fleet.counter('processed')}")
    assert len(starts) == 5 * runs
    assert fleet.counter("processed") == 7 * runs, "counted once"
    assert fleet.number_in("completed") == (7 if "result" in payload else 0)
    assert "lost its worker" not in fleet.log()
    assert fleet.breaches() == []
