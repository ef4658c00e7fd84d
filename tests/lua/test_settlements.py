"""What done, complete, retry, archive and requeue have in common: whose task it is, what stays, what is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from tests.support.fences import FENCES, Fence
from tests.support.keyspace import Key
from tests.support.queue import DAY, Queue, differences
from veredus.errors import CommandRefused

LOCK = "asynq:{q}:unique:t:1"


class Verb(NamedTuple):
    settle: Callable[..., Awaitable[list[int]]]
    container: str
    """Where a task is afterwards; empty for nowhere."""
    containers: tuple[str, ...]
    """What it writes to, besides active and lease."""
    counts: tuple[str, ...]

    def state_of(self, after: dict[str, Key], q: Queue, task_id: str) -> str:
        key = after.get(q.task(task_id))
        return key.value["state"] if key else ""


VERBS = {
    "done": Verb(Queue.done, "", (), ("processed",)),
    "complete": Verb(Queue.complete, "completed", ("completed",), ("processed",)),
    "retry": Verb(Queue.retry, "retry", ("retry", "due"), ("processed", "failed")),
    "archive": Verb(Queue.archive, "archived", ("archived",), ("processed", "failed")),
    "requeue": Verb(Queue.requeue, "pending", ("pending",), ()),
}
EACH = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
COUNTING = pytest.mark.parametrize("verb", [pytest.param(verb, id=name) for name, verb in VERBS.items() if verb.counts])


@EACH
@FENCES
async def test_what_is_not_the_workers_own_stays_untouched_and_is_reported(q: Queue, verb: Verb, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    before = await q.everything()
    async with q.wakeups() as heard:
        assert await verb.settle(q, ("a", owner)) == [1]
    assert await q.everything() == before
    assert heard == []


@EACH
@FENCES
async def test_the_rest_of_the_batch_is_settled(q: Queue, verb: Verb, fence: Fence) -> None:
    await q.activate("a")
    owner = await fence(q)
    await q.activate("b", "c", owner="z:1")
    before = await q.everything()
    assert await verb.settle(q, ("b", "z:1"), ("a", owner), ("c", "z:1"), ("nobody", "z:1")) == [2, 4]
    after = await q.everything()
    changed = differences(before, after)
    assert {verb.state_of(after, q, task_id) for task_id in ("b", "c")} == {verb.container}
    assert {changed[q.key(name)] for name in verb.counts} <= {Key("string", "2", "none")}
    assert q.task("a") not in changed
    assert not {"b", "c"} & {*after.get(q.key("active"), Key("", [], "")).value}
    assert not {"b", "c"} & {*after.get(q.key("lease"), Key("", {}, "")).value}


@EACH
async def test_an_id_twice_is_settled_once_and_reported_once(q: Queue, verb: Verb) -> None:
    await q.activate("a", "b")
    lost = await verb.settle(q, "a", "b", "a")
    assert lost in ([1], [3])
    after = await q.everything()
    assert {verb.state_of(after, q, task_id) for task_id in ("a", "b")} == {verb.container}
    assert {after[q.key(name)] for name in verb.counts} <= {Key("string", "2", "none")}
    if verb.container == "pending":
        assert sorted(await q.pending()) == ["a", "b"]


@EACH
async def test_a_batch_of_tasks_nobody_holds_writes_nothing(q: Queue, verb: Verb) -> None:
    assert await verb.settle(q, "nobody") == [1]
    assert await q.everything() == {}


@pytest.mark.parametrize(
    ("verb", "name"),
    [pytest.param(v, name, id=f"{n}-{name}") for n, v in VERBS.items() for name in ("active", "lease", *v.containers)],
)
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, verb: Verb, name: str) -> None:
    await q.activate("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    async with q.wakeups() as heard:
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await verb.settle(q, "a", "b")
    assert await q.everything() == before
    assert heard == []


@COUNTING
async def test_damaged_counts_fail_no_settlement(q: Queue, verb: Verb) -> None:
    await q.activate("a", "b")
    for name in ("processed", "failed", f"processed:{DAY}", f"failed:{DAY}"):
        await q.client.rpush(q.key(name), "x")
    assert await verb.settle(q, "a") == []
    await q.client.set(q.key("processed"), "not a number")
    assert await verb.settle(q, "b") == []
    assert await q.active() == []


@pytest.mark.parametrize("name", ["done", "complete", "archive"])
async def test_a_held_lock_is_released_and_that_of_another_task_stays(q: Queue, name: str) -> None:
    await q.enqueue(("a", b"", LOCK, 60, ""), "b")
    await q.dequeue(2)
    assert await VERBS[name].settle(q, ("b", "w:1", LOCK)) == []
    assert await q.client.get(LOCK) == b"a"
    assert await VERBS[name].settle(q, ("a", "w:1", LOCK)) == []
    assert await q.client.exists(LOCK) == 0


@pytest.mark.parametrize("name", ["retry", "requeue"])
async def test_the_lock_of_a_task_that_will_run_again_is_kept(q: Queue, name: str) -> None:
    await q.enqueue(("a", b"", LOCK, 60, ""))
    await q.dequeue()
    await q.client.expire(LOCK, 1)
    assert await VERBS[name].settle(q, "a") == []
    assert await q.client.get(LOCK) == b"a"
    assert await q.client.ttl(LOCK) > 50


@EACH
async def test_what_belongs_to_the_attempt_alone_is_gone(q: Queue, verb: Verb) -> None:
    await q.activate("a")
    await q.client.hset(q.task("a"), mapping={"slots": "[]"})
    assert await verb.settle(q, "a") == []
    left: Any = (await q.everything()).get(q.task("a"))
    assert left is None or not {"held", "slots"} & left.value.keys()
