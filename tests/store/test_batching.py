"""The coalescer: what comes while a round trip is under way leaves together, and everybody gets their own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.support.waiting import PATIENCE
from veredus.errors import StoreError
from veredus.store.connection import batching
from veredus.store.connection.batching import Coalescer


class Writer:
    """Doubles numbers; each write waits until it is let go."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.at_once = self.most_at_once = 0
        if not held:
            self.gate.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        if 13 in items:
            raise StoreError("unlucky")
        return [item * 2 for item in items]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def adding(desk: Coalescer[int, int], *items: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(desk.add(item)) for item in items]


async def test_one_call_does_not_wait_for_company() -> None:
    desk = Coalescer(Writer())
    assert await desk.add(4) == 8


async def test_calls_of_one_moment_share_few_writes_and_each_gets_its_own_result() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    tasks = adding(desk, *range(100, 300))
    await settle()
    writer.gate.set()
    assert await asyncio.gather(*tasks) == [i * 2 for i in range(100, 300)]
    assert writer.batches == [[100], [101], [*range(102, 300)]]


async def test_at_most_two_writes_are_on_their_way() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    tasks = []
    for i in range(20, 40):
        tasks += adding(desk, i)
        await settle()
    assert writer.batches == [[20], [21]]
    writer.gate.set()
    assert await asyncio.gather(*tasks) == [i * 2 for i in range(20, 40)]
    assert writer.most_at_once == batching.MAX_IN_FLIGHT


async def test_at_most_two_writes_are_on_their_way_however_long_calls_keep_coming() -> None:
    class Slow(Writer):
        async def __call__(self, items: Sequence[int]) -> list[int]:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await settle()
            self.at_once -= 1
            return list(items)

    writer = Slow()
    desk = Coalescer(writer)
    tasks = []
    for i in range(200):
        tasks += adding(desk, i)
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [*range(200)]
    assert writer.most_at_once == batching.MAX_IN_FLIGHT


async def test_a_write_has_a_bounded_number_of_items() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    count = 2 + batching.MAX_ITEMS * 2 + 7
    tasks = adding(desk, *range(20, 20 + count))
    await settle()
    writer.gate.set()
    assert await asyncio.gather(*tasks) == [(i + 20) * 2 for i in range(count)]
    assert [len(batch) for batch in writer.batches] == [1, 1, batching.MAX_ITEMS, batching.MAX_ITEMS, 7]


async def test_a_write_has_a_bounded_number_of_bytes() -> None:
    assert list(batching.in_batches([3, 3, 3], lambda item: batching.MAX_BYTES // 2)) == [[3, 3], [3]]
    assert list(batching.in_batches([1, 2], lambda item: batching.MAX_BYTES * 2)) == [[1], [2]]
    assert list(batching.in_batches([], lambda item: 1)) == []


async def test_a_failed_write_fails_its_own_callers_and_no_others() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    tasks = adding(desk, 20, 21, 12, 13, 14)
    await settle()
    writer.gate.set()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert replies[:2] == [40, 42]
    assert [type(reply) for reply in replies[2:]] == [StoreError] * 3
    assert await desk.add(5) == 10


async def test_a_cancelled_caller_leaves_the_others_alone() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    tasks = adding(desk, 20, 21, 22, 23, 24)
    await settle()
    tasks[0].cancel()
    tasks[3].cancel()
    await settle()
    writer.gate.set()
    assert [await tasks[i] for i in (1, 2, 4)] == [42, 44, 48]


async def test_a_writer_that_answers_for_too_few_tells_everybody() -> None:
    gate = asyncio.Event()

    async def short(items: Sequence[int]) -> list[int]:
        await gate.wait()
        return [1]

    desk: Coalescer[int, int] = Coalescer(short)
    tasks = adding(desk, 1, 2, 3, 4)
    await settle()
    gate.set()
    replies = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
    assert replies[:2] == [1, 1]
    assert [type(reply) for reply in replies[2:]] == [RuntimeError] * 2


async def test_large_items_leave_in_smaller_batches() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer, size_of=lambda item: batching.MAX_BYTES // 3)
    tasks = adding(desk, *range(20, 29))
    await settle()
    writer.gate.set()
    assert await asyncio.gather(*tasks) == [i * 2 for i in range(20, 29)]
    assert [len(batch) for batch in writer.batches] == [1, 1, 3, 3, 1]


def test_an_item_beyond_the_bound_goes_alone() -> None:
    sizes = [1, batching.MAX_BYTES + 1, 1, batching.MAX_BYTES, batching.MAX_BYTES]
    assert [*batching.in_batches(sizes, lambda size: size)] == [[size] for size in sizes]
    assert [*batching.in_batches([], len)] == []
    assert [*batching.in_batches([1, 2, 3], lambda size: size, most=2)] == [[1, 2], [3]]
