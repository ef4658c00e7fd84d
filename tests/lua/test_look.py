"""look: which workers are subscribed, for the two that look for dead ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.queue import NOW
from veredus.model.absences import Sign
from veredus.store.connection.wakeups import Subscription
from veredus.store.store import Store
from veredus.store.tasks.liveness import JUDGE, LOOK
from veredus.wire import keys

NAMES = [keys.SERVERS, keys.CHECKERS, keys.JUDGED]
LIFE = NOW // 1000 + 10


async def look(store: Store, worker: str, *, may_check: bool = True, now: int = NOW) -> Any:
    return await store.redis.run(LOOK, NAMES, [worker, int(may_check), now])


@pytest.fixture
async def line(store: Store) -> AsyncIterator[Subscription]:
    """The worker `b` is subscribed."""
    line = store.liveness.subscription("b", probes=1.0)
    await line.open(lambda: None)
    yield line
    line.close()


async def test_it_lists_what_has_a_record(store: Store, redis_client: Any, line: Subscription) -> None:
    records = {keys.server("h:0", 1, worker): LIFE - place for place, worker in enumerate("abc")}
    await redis_client.zadd(keys.SERVERS, {**records, keys.server("h", 1, "old"): NOW // 1000 - 301})
    now, own, taken, rows = await look(store, "b")
    assert (now, own, taken) == (NOW, 1, 0)
    assert rows == [one for name, life in records.items() for one in (name.encode(), str(life).encode())]
    assert await look(store, "b", may_check=False) == [NOW, 1, 0, []]
    assert await look(store, "a", may_check=False) == [NOW, 0, 0, []]


async def test_the_connections_of_all_are_counted(store: Store, redis_client: Any, line: Subscription) -> None:
    life = await redis_client.time()
    records = {keys.server("h:0", 1, worker): life[0] + place for place, worker in enumerate("abc")}
    await redis_client.zadd(keys.SERVERS, {**records, "no record": life[0]})
    report = await store.liveness.look("b", may_check=True)
    assert report.subscribers == 1
    assert {name: report.signs[name] for name in "abc"} == {
        "a": Sign(life[0], 0), "b": Sign(life[0] + 1, 1), "c": Sign(life[0] + 2, 0),
    }  # fmt: skip


async def test_two_workers_look_and_another_one_when_one_has_not_asked_for_three_seconds(
    store: Store, redis_client: Any
) -> None:
    await redis_client.zadd(keys.SERVERS, {keys.server("h", 1, "a"): LIFE})

    async def may(worker: str, now: int) -> bool:
        return bool((await look(store, worker, now=now))[3])

    assert [await may(worker, NOW) for worker in "abc"] == [True, True, False]
    assert [await may(worker, NOW + 2999) for worker in "ac"] == [True, False]
    assert [await may(worker, NOW + 3000) for worker in "cba"] == [True, False, True]
    assert 0 < await redis_client.ttl(keys.CHECKERS) <= 60
    assert await may("b", NOW - 600_000), "the server's clock was set back"


async def test_a_worker_learns_how_many_leases_were_taken_from_it(store: Store, redis_client: Any) -> None:
    assert await store.redis.run(JUDGE, [keys.JUDGED], ["a", 2]) == 2
    assert await store.redis.run(JUDGE, [keys.JUDGED], ["a", 3]) == 5
    assert (await look(store, "a", may_check=False))[2] == 5
    assert (await look(store, "b", may_check=False))[2] == 0
    assert 0 < await redis_client.ttl(keys.JUDGED) <= 3600
