"""search: by type, payload and error, over any state, in pages, while others move tasks about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.support.servers import VALKEY_ONLY
from veredus.errors import ConfigError
from veredus.inspector.search import PAGE, Query

STATES = ["pending", "active", "scheduled", "retry", "archived", "completed", "aggregating"]


@pytest.mark.parametrize("state", STATES)
async def test_it_finds_what_fits_all_that_is_given(q: Bench, state: str) -> None:
    await q.fill(state, "a", "b", type="email:send", error_msg="Timeout at smtp")
    await q.fill(state, "c", type="email:digest", error_msg="refused")
    await q.fill(state, "d", type="image", error_msg="timeout")

    async def find(**given: Any) -> list[str]:
        return sorted([task.id async for task in q.inspector.search("q", state, **given)])

    assert await find() == ["a", "b", "c", "d"]
    assert await find(type="email:send") == ["a", "b"]
    assert await find(type="email:*") == ["a", "b", "c"]
    assert await find(payload='"n":"b"') == ["b"]
    assert await find(error="TIMEOUT") == ["a", "b", "d"]
    assert await find(type="email:*", error="timeout", payload='"a"') == ["a"]
    assert await find(type="email") == []


async def test_it_is_bounded_and_goes_on_with_a_cursor(q: Bench) -> None:
    ids = [f"t{n:04d}" for n in range(3 * PAGE)]
    for start in range(0, len(ids), 250):
        await q.pend(*ids[start : start + 250])
    query = Query(payload="5")
    expected = [one for one in reversed(ids) if "5" in one]
    found, cursor, pages = [], "", 0
    while True:
        page = await q.inspector.search_page("q", "pending", query, cursor=cursor, size=10, scan=100)
        found += [task.id for task in page.tasks]
        assert page.scanned <= 100
        cursor, pages = page.cursor, pages + 1
        if not cursor:
            break
    assert found == expected
    assert pages > 7
    scanned = [task.id async for task in q.inspector.search("q", "pending", scan=120)]
    assert scanned == list(reversed(ids))[:120]
    with pytest.raises(ConfigError, match="cursor"):
        await q.inspector.search_page("q", "pending", query, cursor="nonsense")


@pytest.mark.parametrize("state", ["pending", "retry"])
async def test_what_stays_is_found_once_while_others_come_and_go(q: Bench, state: str) -> None:
    ids = [f"t{n:04d}" for n in range(1200)]
    for start in range(0, len(ids), 200):
        await q.fill(state, *ids[start : start + 200])
    gone: set[str] = set()

    async def work() -> None:
        for n in range(60):
            if state == "pending":
                taken, _ = await q.dequeue(5, worker="z", number=n + 1)
                gone.update(taken)
                await q.pend(*[f"new{n}-{i}" for i in range(5)])
            else:
                rows = await q.client.zpopmin(q.key("retry"), 5)
                gone.update(one.decode() for one, _ in rows)
            await asyncio.sleep(0.001)

    worker = asyncio.create_task(work())
    found = []
    async for task in q.inspector.search("q", state):
        found.append(task.id)
        if len(found) % 50 == 0:
            await asyncio.sleep(0.002)
    await worker
    assert len(found) == len(set(found))
    assert set(ids) - gone <= set(found)


@VALKEY_ONLY
async def test_a_walk_goes_on_where_it_was_when_all_of_its_last_page_is_gone(q: Bench) -> None:
    ids = [f"t{n:02d}" for n in range(30)]
    await q.fill("retry", *ids)
    found, cursor = [], ""
    while True:
        page = await q.inspector.search_page("q", "retry", Query(), cursor=cursor, size=10, scan=10)
        found += [task.id for task in page.tasks]
        for task in page.tasks:
            await q.inspector.delete("q", task.id)
        cursor = page.cursor
        if not page.tasks:
            break
    assert found == ids
