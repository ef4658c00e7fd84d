"""owned: what one worker holds, for its supervisor."""

from __future__ import annotations

from tests.support.queue import NOW, Queue
from veredus.store.tasks.leases import Leases, Owned


async def test_only_what_this_worker_still_holds_is_listed(q: Queue) -> None:
    await q.enqueue(*[(one, one.encode()) for one in ("empty", "a", "b", "taken", "gos", "other", "broken", "waits")])
    await q.dequeue(7)
    await q.client.hset(q.task("taken"), "held", f"r:1:{int((await q.scores('lease'))['taken'])}")
    await q.client.zincrby(q.key("lease"), 1, "gos")  # a Go worker has it: it never clears our field
    await q.client.hset(q.task("other"), "held", f"ww:1:{int((await q.scores('lease'))['other'])}")
    await q.client.delete(q.task("broken"))
    await q.client.set(q.task("broken"), "no hash")
    await q.client.hdel(q.task("empty"), "msg")
    _, owned = await Leases(q.redis).owned([q.name, "nothing"], "w:")
    assert owned == [Owned(q.name, "a", "w:1", b"a"), Owned(q.name, "b", "w:1", b"b")]


async def test_those_that_end_first_come_first_up_to_a_limit(q: Queue) -> None:
    await q.activate("a", "b", "c")
    await q.extend("a", now=NOW + 8000)
    _, owned = await Leases(q.redis).owned([q.name], "w:", limit=2)
    assert [one.task_id for one in owned] == ["b", "c"]
