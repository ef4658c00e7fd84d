"""How the outcomes of children come to their parents, without the looks that would find them later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.durable.test_scripts import MARK, kids, waiting
from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY
from veredus.store.store import Store
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.runs import JoinRow
from veredus.wire import keys
from veredus.worker.roles import child_relayer
from veredus.worker.roles.child_relayer import portions, relay

pytestmark = VALKEY_ONLY
LARGE = b"x" * 70_000
"""A result that the notice of an end leaves out."""


@pytest.fixture
def other(store: Store, redis_client: Any) -> Queue:
    """The queue of the children: one that completes in the queue of its parent takes no such way."""
    return Queue(store.redis, redis_client, "other")


async def _child(q: Queue, parent: str, position: int, result: bytes) -> None:
    """A child that has ended."""
    name = f"{parent}{position}"
    child = ChildTask(q.name, name, "q", parent, MARK, "pages", position)
    await q.activate(name, owner=f"{name}:1")
    await q.client.hset(q.task(name), "waited", child.channel)
    assert await q.complete((name, f"{name}:1", "", b"new", 600, 1, result)) == []


async def _parent(q: Queue, name: str, children: int) -> None:
    await waiting(q, name, "o:pages", **{"g:pages": f"{children} digest"})


async def test_all_children_that_have_ended_are_told_to_their_parents_at_once(
    q: Queue, other: Queue, store: Store
) -> None:
    await _parent(q, "a", 2)
    await _parent(q, "b", 2)
    for parent, position, result in (("a", 0, b"1"), ("a", 1, LARGE), ("b", 1, b"2")):
        await _child(other, parent, position, result)
    assert await relay(store, other.name)
    assert await q.pending() == ["a"], "of b one is still to come"
    assert await q.client.hgetall(kids(q, "a")) == {b"0": b"+r1", b"1": b"+r" + LARGE}
    assert await q.client.hgetall(kids(q, "b")) == {b"1": b"+r2"}
    assert not await q.client.exists(keys.ended(other.name))
    assert not await relay(store, other.name), "there are none any more"


async def test_more_children_than_one_call_takes(
    q: Queue, other: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veredus.store.tasks.children.TAKEN", 2)
    monkeypatch.setattr(child_relayer, "MOST_ROWS", 1)
    await _parent(q, "a", 5)
    for position in range(5):
        await _child(other, "a", position, LARGE if position % 2 else b"1")
    assert await relay(store, other.name)
    assert await q.pending() == ["a"]


async def test_a_damaged_list_of_those_that_have_ended_holds_up_nobody(q: Queue, store: Store) -> None:
    await q.client.set(keys.ended(q.name), "damaged")
    assert not await relay(store, q.name)


@pytest.mark.parametrize(
    ("sizes", "portions_of"),
    [
        ([], []),
        ([1], [[1]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([4, 6, 1], [[4, 6], [1]]),
        ([4, 7], [[4], [7]]),
        ([50, 1, 50], [[50], [1], [50]]),
        ([5, 5, 5, 5], [[5, 5], [5, 5]]),
    ],
)
def test_one_call_stores_so_many_outcomes_and_so_many_bytes(
    server: object, monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int], portions_of: list[list[int]]
) -> None:
    """One of any size goes alone."""
    monkeypatch.setattr(child_relayer, "MOST_ROWS", 3)
    monkeypatch.setattr(child_relayer, "MOST_BYTES", 10)
    rows = [JoinRow("a", MARK, "pages", place, b"x" * size) for place, size in enumerate(sizes)]
    assert [[len(row.outcome) for row in portion] for portion in portions(rows)] == portions_of
