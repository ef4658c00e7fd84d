"""The map of slots: learned from whoever answers, doubted where a node is gone, corrected by what others say."""

from __future__ import annotations

import asyncio
import binascii
import time
from typing import Any

import pytest

from tests.support.waiting import forever
from veredus.errors import ConnectionLost
from veredus.store.connection.slot_map import SLOTS, Endpoint, SlotMap, slot_of

A, B, C, D = (("h", port) for port in (1, 2, 3, 4))


class World:
    """Nodes that answer with a map, hang, never answer or are gone; and who was asked."""

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
        if answer == "never":
            await forever()
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


async def test_every_slot_of_a_range_belongs_to_its_node_and_no_other() -> None:
    def node(endpoint: Endpoint) -> list[Any]:
        return [endpoint[0].encode(), endpoint[1], b"id"]

    world = World()
    world.answers = {A: [[0, 0, node(A)], [1, 8191, node(B)], [8192, 8193, node(C)], [8195, SLOTS - 1, node(D)]]}
    slots = SlotMap([A], world.ask)
    assert await slots.find(0) == A
    assert [slots.owner(slot) for slot in (0, 1, 8191, 8192, 8193, 8194, 8195, 16383)] == [A, B, B, C, C, None, D, D]
    assert len(slots._owners) == 16384
    slots.close()


async def test_a_node_is_doubted_until_it_answers_or_has_left_the_cluster() -> None:
    world = World()
    world.answers = {A: rows(A, B), C: rows(A, D)}
    slots = SlotMap([A, C], world.ask)
    await slots.find(0)
    assert not slots.is_doubted(B)
    for endpoint in (A, B, C):
        slots.doubt(endpoint)
    assert all(slots.is_doubted(endpoint) for endpoint in (A, B, C))
    slots.trust(A)
    assert not slots.is_doubted(A)
    slots.doubt(A)
    world.answers = {C: rows(A, D)}
    assert await slots.find(8192) == D
    assert not slots.is_doubted(C), "it has answered"
    assert not slots.is_doubted(B), "it is no node of this cluster any more"
    assert slots.is_doubted(A)
    world.answers = {D: rows(D, D)}
    slots.doubt(D)
    assert await slots.find(8192) == D
    assert slots.is_doubted(A), "one that was named in the settings is asked again later, so it is remembered"
    slots.close()


async def test_one_that_was_behind_is_as_good_as_the_others_when_a_sound_map_was_learned() -> None:
    world = World()
    world.answers = {A: rows(A, B), C: rows(A, D)}
    slots = SlotMap([A, C], world.ask)
    slots.doubt(B)
    assert await slots.find(0) == A  # who named the dead
    slots.doubt(B)
    assert await slots.find(8192) == D  # of the other
    world.asked.clear()
    slots.doubt(D)
    await slots.find(8192)
    assert world.asked == [A]
    slots.close()


async def test_a_node_that_a_slot_moved_to_is_asked_too() -> None:
    world = World()
    world.answers = {A: rows(A, B)}
    slots = SlotMap([A], world.ask)
    await slots.find(0)
    slots.moved(0, D)
    world.answers = {D: rows(D, D)}
    slots.doubt(B)
    assert await slots.find(8192) == D
    slots.close()


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 0), (0.5, 0), (1.5, 1)])
async def test_a_moved_slot_is_no_reason_to_look_at_a_map_that_is_fresh(seconds: float, asked: int) -> None:
    world = World()
    world.answers = {A: rows(A, B)}
    slots = SlotMap([A], world.ask)
    await slots.find(0)
    world.asked.clear()
    slots._learned_at -= seconds
    slots.moved(0, D)
    await asyncio.sleep(0)
    assert len(world.asked) == asked
    assert slots.owner(0) == (A if asked else D)
    slots.close()


async def test_a_look_at_the_whole_map_that_fails_is_not_repeated_for_every_moved_slot() -> None:
    world = World()
    world.answers = {A: rows(A, B)}
    slots = SlotMap([A], world.ask)
    await slots.find(0)
    world.answers = {}
    world.asked.clear()
    slots._learned_at = time.monotonic() - 10.0
    for slot in range(5):
        slots.moved(slot, A)
        for _ in range(3):
            await asyncio.sleep(0)
    assert world.asked == [A, B]
    assert slots._learning is not None
    assert not slots._learning._log_traceback, "asyncio need not complain that nobody waited for it"
    slots.close()


async def test_closed_it_asks_nobody_any_more() -> None:
    world = World()
    world.answers = {A: "never"}
    slots = SlotMap([A], world.ask)
    slots.close()  # it had not begun
    waiting = asyncio.create_task(slots.find(0))
    while not world.asked:
        await asyncio.sleep(0)
    slots.close()
    with pytest.raises(ConnectionLost, match="closed while the cluster was asked for its slots"):
        await waiting
    assert slots._learning is not None
    assert slots._learning.cancelled()


def test_slots_of_keys() -> None:
    """The examples of the specification, and keys with an empty or no part in braces."""
    assert [slot_of(key) for key in ("foo", "bar", "hello")] == [12182, 5061, 866]
    for whole in ("foo{}{bar}", "{}", "{}a}", "a{b", "a}b{"):
        assert slot_of(whole) == binascii.crc_hqx(whole.encode(), 0) % 16384, whole
    assert slot_of("{a}") == slot_of("a")
    assert slot_of("x{a}y}") == slot_of("a")
    assert slot_of("123456789") == 0x31C3
    assert slot_of("{user1000}.following") == slot_of("{user1000}.followers")
    assert slot_of("foo{}{bar}") != slot_of("{bar}")
    assert slot_of("foo{{bar}}zap") == slot_of("{bar")
    assert slot_of("foo{bar}{zap}") == slot_of("bar")
