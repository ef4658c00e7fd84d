"""dequeue beside Go servers: some tasks of a short queue are left for Go's next poll, the same ones by all workers."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.keyspace import breaches
from tests.support.queue import NOW, Queue
from veredus.model.message import TaskMessage
from veredus.model.pools import FreeSlots
from veredus.wire import keys
from veredus.wire.messages import encode_task
from veredus.wire.types import startable

HALF = "50 1500 10\1t\0"
TYPES = startable({"t": "loop", "slow": "thread"}, {})


def is_for_go(task_id: str, percent: int = 50) -> bool:
    return int(hashlib.sha1(task_id.encode()).hexdigest()[:6], 16) % 100 < percent


FOR_GO = [name for name in map(str, range(100)) if is_for_go(name)][:12]
OURS = [name for name in map(str, range(100)) if not is_for_go(name)][:12]


def message(task_id: str, **fields: object) -> bytes:
    values = {"type": "t", "id": task_id, "queue": "q", "retry": 25, **fields}
    return encode_task(TaskMessage(**values))  # type: ignore[arg-type]


async def put(q: Queue, *ids: str, **fields: object) -> None:
    await q.client.sadd(keys.QUEUES, q.name)
    await q.enqueue(*[(one, message(one, **fields)) for one in ids])


async def take(
    q: Queue, terms: str = HALF, *, number: int = 1, wanted: int = 100, now: int = NOW
) -> tuple[list[str], list[str]]:
    """Those taken, and those left for Go."""
    rooms = FreeSlots(loop=wanted, thread=wanted)
    ids, reply = await q.dequeue(wanted, startable=TYPES, for_go=terms, rooms=rooms, number=number, now=now)
    assert breaches(await q.everything()) == []
    return ids, [one.decode() for one in reply[10][::2]]


async def test_the_part_for_go_stays_where_it_is(q: Queue) -> None:
    go, ours = FOR_GO[:3], OURS[:3]
    await put(q, go[0], ours[0], go[1], ours[1], ours[2], go[2])
    assert await take(q) == (ours, go)
    assert await q.pending() == go, "in its order"
    assert (await q.fields(go[0]))["state"] == "pending"
    assert await take(q, number=2, now=NOW + 1499) == ([], go), "the next look comes to the same answer"


async def test_what_go_did_not_take_in_its_time_is_taken(q: Queue) -> None:
    await put(q, *FOR_GO[:2])
    assert await take(q) == ([], FOR_GO[:2])
    assert await take(q, number=2, now=NOW + 1500) == (FOR_GO[:2], [])


async def test_all_is_taken_where_no_go_server_is(q: Queue) -> None:
    await put(q, *FOR_GO[:3])
    assert await take(q, "") == (FOR_GO[:3], [])


async def test_no_more_is_left_than_go_can_run_at_once(q: Queue) -> None:
    await put(q, *FOR_GO)
    taken, left = await take(q)
    assert (taken, left) == (FOR_GO[10:], FOR_GO[:10])


async def test_in_a_longer_queue_nothing_is_left_behind_the_first(q: Queue) -> None:
    """Go has enough to do there without it."""
    await put(q, *[f"other{n}" for n in range(10)], type="unknown")
    await put(q, *FOR_GO[:3])
    assert await take(q) == (FOR_GO[:3], [])


@pytest.mark.parametrize("fields", [{"retry": 0}, {"retry": 3, "retried": 1}], ids=str)
async def test_a_task_without_retries_or_that_has_failed_is_not_left(q: Queue, fields: dict[str, int]) -> None:
    """Go may have no handler for it."""
    await put(q, FOR_GO[0], **fields)
    assert await take(q) == ([FOR_GO[0]], [])


async def test_a_type_that_go_does_not_know_is_not_left(q: Queue) -> None:
    await put(q, FOR_GO[0])
    await put(q, FOR_GO[1], type="slow")
    assert await take(q, HALF + "\2slow\0") == ([FOR_GO[1]], [FOR_GO[0]])


async def test_while_one_task_is_on_trial_no_other_of_its_type_is_left(q: Queue) -> None:
    """Also when Go has just taken it: this worker has yet to learn that."""
    await put(q, *OURS[:3])
    trial = f"50 1500 10\3t\0{OURS[1]}\0"
    assert await take(q, trial, wanted=1) == ([OURS[0]], [])
    assert await take(q, trial, number=2) == ([OURS[2]], [OURS[1]])
    await put(q, OURS[3], FOR_GO[0])
    assert await take(q, "50 1500 10\3t\0gone\0", number=3) == ([OURS[1], OURS[3], FOR_GO[0]], [])


async def test_of_a_type_that_was_not_tried_one_task_is_left_whatever_its_id(q: Queue) -> None:
    await put(q, *OURS[:3])
    await put(q, *OURS[3:5], type="slow")
    _, reply = await q.dequeue(
        100, startable=TYPES, for_go="50 1500 10", rooms=FreeSlots(loop=100, thread=100), now=NOW
    )
    assert reply[10] == [OURS[0].encode(), b"t", OURS[3].encode(), b"slow"]
    assert await q.pending() == [OURS[0], OURS[3]]


async def test_a_type_with_a_separator_in_its_name_is_not_left(q: Queue) -> None:
    await put(q, "odd", type="t\0")
    ids, reply = await q.dequeue(
        1, startable=startable({}, {"t": "loop"}), for_go=HALF, rooms=FreeSlots(loop=1), now=NOW
    )
    assert (ids, reply[10]) == (["odd"], [])


async def test_one_that_says_not_since_when_it_waits_is_not_left(q: Queue) -> None:
    await put(q, FOR_GO[0], FOR_GO[1])
    await q.client.hdel(q.task(FOR_GO[0]), "pending_since")
    await q.client.hset(q.task(FOR_GO[1]), "pending_since", "later")
    assert await take(q) == (FOR_GO[:2], [])


async def test_one_from_the_future_is_not_left(q: Queue) -> None:
    """Its time would not come: the server's clock was set back."""
    await put(q, FOR_GO[0])
    assert await take(q, now=NOW - 60_000) == ([FOR_GO[0]], [])


async def test_a_cancelled_one_is_taken(q: Queue) -> None:
    await put(q, FOR_GO[0])
    await q.client.hset(q.task(FOR_GO[0]), "cancel", "archive")
    assert await take(q) == ([FOR_GO[0]], [])


async def test_every_second_task_of_many_is_for_go() -> None:
    assert 4500 < sum(is_for_go(str(n)) for n in range(10_000)) < 5500
