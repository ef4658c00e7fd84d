"""A worker that loses its network, and replies that get lost on their way."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.crash.fleet import LEASE, QUEUE, RECOVERY, Fleet, say
from tests.crash.proxy import Proxy
from tests.support.servers import RealServer
from veredus.store.work import COMPLETE, DEQUEUE, DONE, RETRY
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
    fleet.wait(lambda: len(fleet.starts()) == 5, 10, "all starts")
    other = fleet.start(concurrency=10)
    getattr(proxy, how)()
    cut_at = time.monotonic()
    fleet.open_gate("1")  # its handlers end while it cannot tell anybody
    fleet.wait(lambda: len(fleet.finishes()) == 5, 10, "the end of its handlers")
    fleet.wait(lambda: len([f for f in fleet.starts() if f.pid == other.pid]) == 5, RECOVERY + 10, "the second runs")
    elsewhere = time.monotonic() - cut_at
    fleet.open_gate("2")
    fleet.wait(lambda: fleet.number_in("completed") == 5, 10, "the other's settlements")
    fleet.wait(lambda: time.monotonic() - cut_at > 1.5 * LEASE, 2 * LEASE, "the end of the scenario")
    before = fleet.keyspace()
    proxy.restore()
    (canary,) = fleet.enqueue(options={"queue": "canary"})
    resumed = fleet.wait(lambda: fleet.finishes(canary), 10, "its first task after the cut")
    fleet.wait(lambda: not fleet.tasks_left("canary"), 10, "its settlement")
    fleet.wait(lambda: fleet.shown_alive(lonely.pid), 10, "its record")
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
    fleet.wait_done(10)
    proxy.swallow_reply_to(DEQUEUE.sha)
    ids = fleet.enqueue(8, gate="{n}")
    fleet.wait(lambda: proxy.swallowed, 10, "the lost reply")
    took = fleet.wait(lambda: len(fleet.starts(*ids)) >= 6, 5, "the starts")
    say(f"the tasks of the lost batch started {took:.2f} s after the reply was lost (the lease is {LEASE} s)")
    assert [fact.id for fact in fleet.starts(*ids)] == ids[:6], "in order, the same batch"
    assert (fleet.number_in("active"), fleet.number_in("pending")) == (6, 2), "no more than there are hands"
    assert fleet.redis.zcard(keys.lease(QUEUE)) == 6
    fleet.wait(lambda: time.time() - fleet.starts(*ids)[0].at > 2 * min(LEASE, 3), 10, "time for a recoverer")
    assert len(fleet.starts(*ids)) == 6
    fleet.open_gate("1")
    fleet.wait_done(10)
    assert len(fleet.starts(*ids)) == 8
    assert "lost its worker" not in fleet.log()
    assert (fleet.counter("processed"), fleet.counter("failed")) == (14, 0)


@pytest.mark.parametrize(
    ("script", "payload"),
    [(DONE, {}), (COMPLETE, {"result": True}), (RETRY, {"fails": 1})],
    ids=["done", "complete", "retry"],
)
def test_a_settlement_whose_reply_was_lost_is_not_run_again(fleet: Fleet, proxy: Proxy, script, payload) -> None:
    fleet.start(url=proxy.url, concurrency=10)
    warm = fleet.enqueue(2, **payload)
    fleet.wait(lambda: len(fleet.finishes(*warm)) == 2, 10, "the scripts to be loaded")
    fleet.wait(lambda: not fleet.number_in("active"), 10, "their settlement")
    proxy.swallow_reply_to(script.sha)
    ids = fleet.enqueue(5, **payload)
    fleet.wait(lambda: proxy.swallowed, 10, "the lost reply")
    fleet.wait(lambda: {fact.id for fact in fleet.finishes()} >= set(ids), 10, "all ends")
    fleet.wait(lambda: not fleet.number_in("active"), 10, "all settlements")
    fleet.wait(lambda: not fleet.number_in("retry") and not fleet.number_in("pending"), 10, "the end")
    runs = 2 if "fails" in payload else 1
    starts = fleet.starts(*ids)
    say(f"{len(starts)} starts of 5 tasks, processed {fleet.counter('processed')}")
    assert len(starts) == 5 * runs
    assert fleet.counter("processed") == 7 * runs, "counted once"
    assert fleet.number_in("completed") == (7 if "result" in payload else 0)
    assert "lost its worker" not in fleet.log()
    assert fleet.breaches() == []
