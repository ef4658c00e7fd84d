"""The coalescer: what comes while a round trip is under way leaves together, and everybody gets their own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from veredus.errors import StoreError
from veredus.store import batching
from veredus.store.batching import Coalescer


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


async def test_calls_of_one_moment_are_one_write_and_each_gets_its_own_result() -> None:
    writer = Writer()
    desk = Coalescer(writer)
    assert await asyncio.gather(*[desk.add(i) for i in range(100, 300)]) == [i * 2 for i in range(100, 300)]
    assert writer.batches == [[*range(100, 300)]]


async def test_one_call_does_not_wait_for_company() -> None:
    desk = Coalescer(Writer())
    assert await desk.add(4) == 8


async def test_what_comes_meanwhile_leaves_together_and_at_most_two_are_on_their_way() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    futures = []
    for i in range(20, 40):
        futures.append(desk.add(i))
        await settle()
    assert writer.batches == [[20], [21]]
    writer.gate.set()
    assert await asyncio.gather(*futures) == [i * 2 for i in range(20, 40)]
    assert writer.batches == [[20], [21], [*range(22, 40)]]
    assert writer.most_at_once == batching.MAX_IN_FLIGHT


async def test_a_write_has_a_bounded_size() -> None:
    writer = Writer()
    desk = Coalescer(writer)
    count = batching.MAX_ITEMS * 2 + 7
    assert await asyncio.gather(*[desk.add(i + 20) for i in range(count)]) == [(i + 20) * 2 for i in range(count)]
    assert [len(batch) for batch in writer.batches] == [batching.MAX_ITEMS, batching.MAX_ITEMS, 7]


async def test_a_failed_write_fails_its_own_callers_and_no_later_ones() -> None:
    desk = Coalescer(Writer())
    replies = await asyncio.gather(*[desk.add(i) for i in (12, 13, 14)], return_exceptions=True)
    assert [type(reply) for reply in replies] == [StoreError] * 3
    assert await desk.add(5) == 10


async def test_a_cancelled_caller_leaves_the_others_alone() -> None:
    writer = Writer(held=True)
    desk = Coalescer(writer)
    futures = [desk.add(i) for i in (20, 21, 22)]
    await settle()
    futures[1].cancel()
    writer.gate.set()
    assert [await futures[0], await futures[2]] == [40, 44]


async def test_a_writer_that_answers_for_too_few_tells_everybody() -> None:
    async def short(items: Sequence[int]) -> list[int]:
        return [1]

    desk: Coalescer[int, int] = Coalescer(short)
    futures = [desk.add(1), desk.add(2)]
    _, waiting = await asyncio.wait(futures, timeout=2)
    assert not waiting
    with pytest.raises(ValueError):
        await futures[1]
