"""Queues whose names only another program would give: they are looked at, examined and removed like any other."""

from __future__ import annotations

import pytest

from tests.inspector.support import Bench
from tests.support.servers import VALKEY_ONLY
from veredus.inspector.inspector import Inspector

pytestmark = VALKEY_ONLY
ODD = ["a}:t:b", "a,b=3", "a\nb", " a ", "{a", "a}"]


@pytest.mark.parametrize("name", ODD)
async def test_the_doctor_takes_each_key_for_the_queue_it_belongs_to(q: Bench, inspector: Inspector, name: str) -> None:
    """The keys of `a}:t:b` begin like those of tasks of `a`: read so, they would be damage, and mended away."""
    odd, plain = Bench(q.redis, q.client, name), Bench(q.redis, q.client, "a")
    for bench in (odd, plain):
        for state in ("pending", "scheduled", "retry", "archived", "completed", "active", "aggregating"):
            await bench.fill(state, f"{state}-1", f"{state}-2")
    before = await q.everything()
    for which in (None, "a", name):
        assert [one for one in await q.inspector.doctor.diagnose(which, server=False) if one.repairable] == []
    assert await q.inspector.doctor.repair_all() == []
    assert await q.everything() == before
    assert {one.queue for one in await inspector.stats()} == {"a", name}
    assert (await inspector.queue(name)).pending == 2
    assert [task.id for task in await inspector.tasks(name, "pending")] == ["pending-1", "pending-2"]


async def test_damage_in_a_queue_with_braces_is_found_there(q: Bench) -> None:
    odd = Bench(q.redis, q.client, "a}:t:b")
    await odd.pend("x")
    await q.client.sadd("asynq:queues", "a")
    await q.client.lpush(odd.key("pending"), "gone")
    (found,) = await q.inspector.doctor.diagnose(server=False)
    assert (found.kind, found.queue, found.task_id) == ("dangling", "a}:t:b", "gone")
    assert await q.inspector.doctor.diagnose("a", server=False) == []


async def test_to_remove_a_queue_leaves_those_alone_whose_keys_begin_alike(q: Bench, inspector: Inspector) -> None:
    odd, plain = Bench(q.redis, q.client, "a}:t:b"), Bench(q.redis, q.client, "a")
    await odd.pend("x")
    before = await q.everything()
    await plain.pend("y")
    await inspector.delete_queue("a", force=True)
    assert await q.everything() == before
    await inspector.delete_queue("a}:t:b", force=True)
    assert await q.everything() == {}
