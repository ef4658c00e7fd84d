"""dequeue leaves what this worker cannot start where it is, in its order, and looks at a bounded number of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.queue import NOW, Queue
from veredus.model.message import TaskMessage
from veredus.model.pools import FreeSlots
from veredus.wire.messages import encode_task
from veredus.wire.types import startable

KNOWN = startable({"a": "loop", "t": "thread", "p": "process"}, {})


def message(task_type: str, task_id: str) -> bytes:
    return encode_task(TaskMessage(type=task_type, id=task_id, queue="q"))


async def put(q: Queue, *ids: str) -> None:
    """The type of each is its first letter."""
    await q.enqueue(*[(task_id, message(task_id[0], task_id)) for task_id in ids])


async def pending(q: Queue) -> list[str]:
    """The next to run first."""
    return [task_id.decode() for task_id in reversed(await q.client.lrange(q.key("pending"), 0, -1))]


async def ask(q: Queue, wanted: int = 10, **given: Any) -> tuple[list[str], int, list[str], list[str]]:
    """Ids, how many are behind, the cursors, the types that are not known."""
    q.number = getattr(q, "number", 0) + 1  # type: ignore[attr-defined]
    given.setdefault("rooms", FreeSlots(wanted, wanted, wanted))
    ids, reply = await q.dequeue(wanted, number=q.number, startable=KNOWN, **given)  # type: ignore[attr-defined]
    return ids, reply[7], [cursor.decode() for cursor in reply[8]], [name.decode() for name in reply[9]]


async def test_an_unknown_type_stays_where_it_is_and_in_order(q: Queue) -> None:
    await put(q, "x1", "a1", "x2", "y3", "a2", "x4")
    assert await ask(q) == (["a1", "a2"], 0, ["x4", "x4", "x4"], ["x", "y"])
    assert await pending(q) == ["x1", "x2", "y3", "x4"]


async def test_a_worker_for_every_type_takes_no_more_than_all_its_pools_have_room_for(q: Queue) -> None:
    await put(q, "a1", "a2", "a3", "a4")
    ids, _ = await q.dequeue(4, rooms=FreeSlots(1, 1, 0))
    assert ids == ["a1", "a2"]
    assert await pending(q) == ["a3", "a4"]


async def test_a_look_that_takes_nothing_writes_nothing(q: Queue) -> None:
    await put(q, "x1", "x2")
    before = await q.everything()
    assert (await ask(q))[0] == []
    assert await q.everything() == before


async def test_a_full_pool_holds_up_only_its_own_tasks(q: Queue) -> None:
    await put(q, "p1", "t1", "a1", "p2", "t2", "a2")
    ids, behind, cursors, unknown = await ask(q, rooms=FreeSlots(10, 1, 0))
    assert (ids, behind, unknown) == (["t1", "a1", "a2"], 0, [])
    assert cursors == ["t2", "p2", ""], "the thread pool goes on before t2, which it could not start"
    assert await pending(q) == ["p1", "p2", "t2"]


async def test_no_pool_gets_more_than_it_has_room_for_and_all_together_no_more_than_wanted(q: Queue) -> None:
    await put(q, *[f"{kind}{number}" for number in range(5) for kind in "apt"])
    assert (await ask(q, 4, rooms=FreeSlots(9, 1, 2)))[0] == ["a0", "p0", "t0", "a1"]
    assert (await ask(q, 9, rooms=FreeSlots(0, 1, 2)))[0] == ["p1", "t1", "p2"]


async def test_behind_a_cursor_only_what_came_later_is_looked_at(q: Queue) -> None:
    await put(q, "x1", "a1", "x2", "a2", "x3", "a3")
    ids, behind, cursors, _ = await ask(q, cursor="x2")
    assert (ids, behind, cursors[0]) == (["a2", "a3"], 0, "x3")
    assert await pending(q) == ["x1", "a1", "x2", "x3"]
    await put(q, "a4")
    assert await ask(q, cursor="x3") == (["a4"], 0, ["x3", "x3", "x3"], [])
    assert await pending(q) == ["x1", "a1", "x2", "x3"]
    assert await ask(q, cursor="x3") == ([], 0, ["x3", "x3", "x3"], [])


async def test_a_pool_without_room_gets_no_cursor(q: Queue) -> None:
    await put(q, "x1", "a1")
    assert await ask(q, cursor="x1", rooms=FreeSlots(0, 1, 1)) == ([], 0, ["", "a1", "a1"], [])


async def test_a_cursor_that_somebody_took_means_the_front(q: Queue) -> None:
    await put(q, "a1", "x2", "a2")
    assert (await ask(q, cursor="gone"))[:3] == (["a1", "a2"], 0, ["x2", "x2", "x2"])


async def test_a_cursor_that_is_gone_and_nothing_to_pass_over_means_no_cursor(q: Queue) -> None:
    await put(q, "a1")
    assert await ask(q, cursor="gone") == (["a1"], 0, ["", "", ""], [])


async def test_one_call_passes_over_a_thousand_and_the_next_goes_on_behind_them(q: Queue) -> None:
    await put(q, *[f"x{number}" for number in range(1500)], "a1")
    ids, behind, cursors, _ = await ask(q)
    assert (ids, behind, cursors[0]) == ([], 501, "x999")
    ids, behind, cursors, _ = await ask(q, cursor=cursors[0])
    assert (ids, behind, cursors[0]) == (["a1"], 0, "x1499")
    assert len(await pending(q)) == 1500


async def test_a_task_behind_more_than_twenty_thousand_others_waits_until_some_are_gone(q: Queue) -> None:
    await q.enqueue(*[(f"x{number}", message("x", "x")) for number in range(20_500)])
    await put(q, "a1")
    cursor, calls, behind = "", 0, 1
    while behind:
        ids, behind, cursors, _ = await ask(q, cursor=cursor)
        cursor, calls = cursors[0], calls + 1
        assert (ids, calls < 30) == ([], True)
    assert calls == 20
    await q.client.ltrim(q.key("pending"), 0, -1001)
    taken: list[str] = []
    for _ in range(2):
        ids, _, cursors, _ = await ask(q, cursor=cursor)
        cursor, taken = cursors[0], taken + ids
    assert taken == ["a1"]


@pytest.mark.parametrize(
    ("task_type", "pool"),
    [
        ("email", "loop"), ("email:welcome", "thread"), ("email:x", "process"), ("email:", "process"),
        ("sms", None), ("emai", None), ("mail", None), ("email:x\1y", "process"), ("e\0mail", None),
        ("1", None), ("z" * 200, "loop"), ("z" * 199, None),
    ],
)  # fmt: skip
async def test_exact_names_win_over_patterns_and_long_patterns_over_short_ones(
    q: Queue, task_type: str, pool: str | None
) -> None:
    known = startable(
        {"email": "loop", "z" * 200: "loop"}, {"email:*": "process", "email:w*": "thread", "email:we*": "thread"}
    )
    await q.enqueue(("i", encode_task(TaskMessage(type=task_type, id="i", queue="q"))))
    for number, name in enumerate(("loop", "thread", "process"), start=1):
        ids, _ = await q.dequeue(startable=known, number=number, rooms=FreeSlots(**{name: 1}))
        if ids:
            assert name == pool
            return
    assert pool is None


async def test_a_pattern_of_everything_takes_everything(q: Queue) -> None:
    await put(q, "x1", "y2")
    ids, _ = await q.dequeue(5, startable=startable({}, {"*": "thread"}), rooms=FreeSlots(thread=5))
    assert ids == ["x1", "y2"]


async def test_a_worker_without_tasks_takes_none(q: Queue) -> None:
    await put(q, "x1")
    assert (await q.dequeue(5, startable=startable({}, {})))[0] == []


@pytest.mark.parametrize("data", [b"\x0a\x7fshort", b"\x0a", b"", b"\xff", b"\x0a\xff\xff\xff\xff\xff\xff"])
async def test_bytes_that_are_no_message_are_taken_by_anybody_to_be_archived(q: Queue, data: bytes) -> None:
    await q.enqueue(("bad", data))
    await put(q, "x1")
    ids, *_ = await ask(q, rooms=FreeSlots(process=1))
    assert ids == ["bad"]


async def test_what_is_to_be_cancelled_is_taken_by_anybody(q: Queue) -> None:
    await put(q, "x1", "p2")
    for task_id in ("x1", "p2"):
        await q.client.hset(q.task(task_id), "cancel", "archive")
    assert (await ask(q, rooms=FreeSlots(loop=5)))[0] == ["x1", "p2"]


async def test_what_cannot_be_run_at_all_is_dropped_between_those_that_stay(q: Queue) -> None:
    await put(q, "x1", "a1", "x2", "x3", "a2")
    await q.client.delete(q.task("a1"))
    await q.client.hset(q.task("x3"), "expires_at", NOW - 1)
    assert (await ask(q))[0] == ["a2"]
    assert await pending(q) == ["x1", "x2"]


async def test_a_task_with_an_order_key_of_another_worker_keeps_its_turn(q: Queue) -> None:
    await put(q, "x1", "a1")
    await q.client.hset(q.task("x1"), "order_key", "k")
    await q.client.zadd(q.key("lane:k"), {"other": 1, "x1": 2})
    before = await q.client.hgetall(q.task("x1"))
    assert (await ask(q))[0] == ["a1"]
    assert await pending(q) == ["x1"]
    assert await q.client.hgetall(q.task("x1")) == before


async def test_a_limit_counts_only_what_is_started(q: Queue) -> None:
    await q.client.hset(q.key("limits"), "queue", '{"concurrency": 1}')
    await put(q, "x1", "p1", "a1", "a2")
    ids, *_ = await ask(q, rooms=FreeSlots(loop=5))
    assert ids[:1] == ["a1"]
    assert (await pending(q))[:2] == ["x1", "p1"]


async def test_a_repeated_question_gets_the_same_batch_whatever_has_room_by_then(q: Queue) -> None:
    await put(q, "x1", "p1", "a1")
    first, _ = await q.dequeue(5, number=1, startable=KNOWN, rooms=FreeSlots(5, 5, 5))
    again, _ = await q.dequeue(5, number=1, again=1, startable=KNOWN, rooms=FreeSlots(loop=1))
    assert (first, again) == (["p1", "a1"], ["p1", "a1"])
