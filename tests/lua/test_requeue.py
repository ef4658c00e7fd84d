"""requeue: tasks given back unrun, to the front of pending."""

from __future__ import annotations

from tests.support.keyspace import Key
from tests.support.queue import NOW, Queue, differences


async def test_a_batch_is_next_to_run_in_the_order_given(q: Queue) -> None:
    await q.activate("a", "b", "c")
    await q.enqueue("later")
    before = await q.everything()
    assert await q.requeue("a", "c", now=NOW + 700) == []
    after = await q.everything()
    given_back = Key("hash", {"msg": "", "state": "pending", "pending_since": f"{NOW + 700}000000"}, "none")
    assert differences(before, after) == {
        q.key("active"): Key("list", ["b"], "none"),
        q.key("lease"): Key("zset", {"b": after[q.task("b")].value["held"].rpartition(":")[2]}, "none"),
        q.key("pending"): Key("list", ["later", "c", "a"], "none"),
        q.task("a"): given_back,
        q.task("c"): given_back,
    }
    assert (await q.dequeue(3, number=2))[0] == ["a", "c", "later"]


async def test_nothing_is_counted(q: Queue) -> None:
    await q.activate("a")
    await q.requeue("a")
    assert not [name for name in await q.everything() if "processed" in name or "failed" in name]


async def test_five_thousand_in_one_call(q: Queue) -> None:
    ids = [f"t{i}" for i in range(5000)]
    await q.activate(*ids)
    assert await q.requeue(*ids) == []
    assert await q.pending() == ids
