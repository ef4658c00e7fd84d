"""The inbox of a peer alone: what is acknowledged and when, what a fork takes back, and the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from veredus.errors import ConfigError, SessionClosed
from veredus.model.delivery import Cursor
from veredus.model.frames import Message as Frame
from veredus.peer import Discontinuity, Gap, Item, Message
from veredus.peer.inbox import Inbox

FORK = Discontinuity("fork")


class Box(Inbox):
    """Notes the numbers that are acknowledged."""

    def __init__(self, *items: int | Item, window: int = 100) -> None:
        self.acked: list[int] = []
        super().__init__(lambda cursor: self.acked.append(cursor.seq), window)
        for item in items:
            self.put(message(item) if isinstance(item, int) else item)


def message(seq: int) -> Message:
    return Message(Frame(seq=seq, ts=seq), Cursor("e", seq, seq))


def shown(items: list[Item]) -> list[object]:
    return [item.seq if isinstance(item, Message) else type(item).__name__ for item in items]


async def test_taking_the_next_item_acknowledges_the_one_before() -> None:
    box = Box(1, Gap(2, 5, "expired", Cursor("e", 5, 5)), FORK, 6)
    taken: list[Item] = []
    for acked in ([], [1], [1, 5], [1, 5]):
        taken.append(await box.take())
        assert box.acked == acked
    assert shown(taken) == [1, "Gap", "Discontinuity", 6]
    for _ in range(2):
        box.acknowledge_last()
        assert box.acked == [1, 5, 6]


@pytest.mark.parametrize(
    ("items", "most", "taken", "acked"),
    [
        ((1, 2, 3), 2, [1, 2], [2]),
        ((1, 2, 3), 9, [1, 2, 3], [3]),
        ((1, FORK), 9, [1, "Discontinuity"], [1]),
        ((FORK,), 9, ["Discontinuity"], []),
        ((1, FORK, 2), 2, [1, "Discontinuity"], [1]),
    ],
)
async def test_what_was_taken_together_is_acknowledged_up_to_its_last_number(
    items: tuple[int | Item, ...], most: int, taken: list[object], acked: list[int]
) -> None:
    box = Box(*items)
    assert shown(await box.take_many(most)) == taken
    assert box.acked == []
    box.acknowledge_last()
    assert box.acked == acked
    assert len(box) == len(items) - len(taken)


@pytest.mark.parametrize(
    ("seq", "left"), [(1, ["Discontinuity"]), (2, [1, "Discontinuity"]), (4, [1, 2, "Discontinuity", 3])]
)
async def test_a_fork_takes_back_what_comes_from_its_number_on(seq: int, left: list[object]) -> None:
    box = Box(1, 2, FORK, 3)
    box.drop_from(seq)
    assert shown(list(box._items)) == left
    assert box.ends_with(FORK) == (left[-1] == "Discontinuity")


@pytest.mark.parametrize(("seq", "acked"), [(1, []), (2, [1])])
async def test_what_is_in_hand_is_not_acknowledged_after_a_fork_that_took_it_back(seq: int, acked: list[int]) -> None:
    box = Box(1)
    await box.take()
    box.drop_from(seq)
    box.acknowledge_last()
    assert box.acked == acked
    assert not box.ends_with(FORK)


async def test_the_end_comes_after_what_is_left() -> None:
    for error, raised in ((None, StopAsyncIteration), (SessionClosed("gone", code=4504), SessionClosed)):
        box = Box(1)
        box.end(error)
        await box.take()
        for _ in range(2):
            with pytest.raises(raised):
                await box.take_many(9)
        assert box.acked == [1]


async def test_a_reader_that_waits_is_woken_and_a_second_one_refused() -> None:
    box = Box()
    waiting = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="one reader"):
        await box.take()
    box.put(message(1))
    box.put(message(2))
    assert shown([await waiting, await box.take()]) == [1, 2]
    waiting = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    box.put(message(3))
    assert shown([await box.take()]) == [3], "one that was called off stands in nobody's way"


async def test_a_callback_has_handled_all_but_what_comes_after_the_end() -> None:
    box = Box(1, FORK, 2)
    seen: list[Item] = []
    box.end(None)
    await box.call_for_each(seen.append)
    assert shown(seen) == [1, "Discontinuity", 2]
    assert box.acked == [1, 2]


@pytest.mark.parametrize(("window", "reads", "warnings"), [(3, False, 0), (2, False, 1), (2, True, 0)])
async def test_a_full_window_that_nobody_reads_is_said_once(
    caplog: pytest.LogCaptureFixture, window: int, reads: bool, warnings: int
) -> None:
    box = Box(window=window)
    if reads:
        box.acknowledge_last()
    with caplog.at_level(logging.WARNING, "veredus.peer"):
        box.put(message(1))
        assert "nothing reads them" not in caplog.text
        for seq in (2, 3) if warnings else (2,):
            box.put(message(seq))
    assert caplog.text.count("nothing reads them") == warnings
