"""The map of slots: learned from whoever answers, doubted where a node is gone, corrected by what others say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from veredus.errors import ConnectionLost
from veredus.store.slots import SLOTS, Endpoint, SlotMap, slot_of

A, B, C, D = (("h", port) for port in (1, 2, 3, 4))


class World:
    """Nodes that answer with a map, hang or are gone; and who was asked."""

    def __init__(self) -> None:
        self.answers: dict[Endpoint, Any] = {}
        self.asked: list[Endpoint] = []

    async def ask(self, endpoint: Endpoint) -> Any:
        self.asked.append(endpoint)
        answer = self.answers.get(endpoint)
        if answer is None:
            raise ConnectionLost("gone")
        if answer == "hangs":
            raise TimeoutError
        return answer


def rows(low: Endpoint, high: Endpoint) -> Any:
    return [
        [0, 8191, [low[0].encode(), low[1], b"id"]],
        [8192, SLOTS - 1, [high[0].encode(), high[1], b"id"], [b"replica", 9, b"id"]],
    ]


async def test_it_is_learned_from_the_first_that_answers() -> None:
    world = World()
    world.answers = {A: "hangs", B: rows(A, B)}
    slots = SlotMap([A, B], world.ask)
    assert slots.owner(0) is None
    assert await asyncio.gather(*[slots.find(slot) for slot in (0, 8192)]) == [A, B]
    assert world.asked == [A, B], "asked once for all who wait"
    world.answers = {}
    slots.doubt(B)
    assert slots.owner(0) == A, "the slots of the others are not forgotten"
    with pytest.raises(ConnectionLost, match=r"no node .* answers: h:1: gone; h:2: gone"):
        await slots.find(8192)
    slots.close()


async def test_one_that_still_names_the_dead_is_asked_last_next_time() -> None:
    world = World()
    world.answers = {A: rows(A, B), C: rows(A, B)}
    slots = SlotMap([A, C], world.ask)
    assert await slots.find(8192) == B
    slots.doubt(B)
    assert await slots.find(8192) == B, "nobody has taken over yet"
    slots.doubt(B)
    world.answers[C] = rows(A, D)
    world.asked.clear()
    assert await slots.find(8192) == D
    assert world.asked == [C]
    slots.close()


async def test_a_moved_slot_is_believed_at_once_and_the_rest_looked_up_meanwhile() -> None:
    world = World()
    world.answers = {A: rows(A, B)}
    slots = SlotMap([A], world.ask)
    await slots.find(0)
    slots._learned_at = -10.0
    world.answers[A] = rows(D, D)
    slots.moved(0, D)
    assert slots.owner(0) == D
    assert slots.owner(8192) == B
    await asyncio.sleep(0.01)
    assert slots.owner(8192) == D
    slots.close()


async def test_many_moved_slots_are_the_reason_for_one_look_at_the_whole_map() -> None:
    world = World()
    world.answers = {A: rows(A, B)}
    slots = SlotMap([A], world.ask)
    await slots.find(0)
    world.asked.clear()
    slots._learned_at = -10.0
    for slot in range(5):
        slots.moved(slot, D)
        await asyncio.sleep(0.001)
    assert world.asked == [A]
    slots.close()


async def test_an_answer_without_a_host_means_the_host_that_was_asked() -> None:
    world = World()
    world.answers = {A: [[0, SLOTS - 2, [None, 7, b"id"]], [SLOTS - 1, SLOTS - 1, [b"?", 8, b"id"]]]}
    slots = SlotMap([A], world.ask)
    assert await slots.find(0) == ("h", 7)
    assert await slots.find(SLOTS - 1) == ("h", 8)
    world.answers = {A: [[0, 1, [b"x", 7, b"id"]]]}
    slots.doubt(("h", 7))
    with pytest.raises(ConnectionLost, match="no node of the cluster has slot 5"):
        await slots.find(5)
    slots.close()


def test_slots_of_keys() -> None:
    """The examples of the specification."""
    assert slot_of("123456789") == 0x31C3
    assert slot_of("{user1000}.following") == slot_of("{user1000}.followers")
    assert slot_of("foo{}{bar}") != slot_of("{bar}")
    assert slot_of("foo{{bar}}zap") == slot_of("{bar")
    assert slot_of("foo{bar}{zap}") == slot_of("bar")
