"""survey: one call says in which of many queues there is anything that a sweep looks for."""

from __future__ import annotations

import pytest

from tests.support.queue import NOW, Queue
from veredus.store.store import connect
from veredus.store.tasks.surveys import SURVEY, QueueRow, Surveys
from veredus.wire import keys

PLACES = {
    "lease": {"leases"}, "active": {"leases"}, "lanes": {"leases"}, "waits": {"leases"}, "scheduled": {"due"},
    "retry": {"due"}, "limited": {"due"}, "due": {"due", "kept"}, "completed": {"kept"}, "pending": set(),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
async def test_each_key_is_seen_by_the_sweeps_that_look_at_it(q: Queue, name: str) -> None:
    await q.client.set(q.key(name), "anything")
    for sought in ("leases", "due", "kept"):
        rows = [QueueRow(keys.queue_prefix(queue)) for queue in ("other", "q", "third")]
        now, found = await q.redis.run(SURVEY, [keys.QUEUES], [*SURVEY.args((sought,), rows), NOW])
        assert (now, found) == (NOW, [2] if sought in PLACES[name] else []), sought


async def test_a_few_queues_are_not_surveyed_and_many_are_in_portions(q: Queue) -> None:
    surveys = Surveys(q.redis)
    few = [f"q{number}" for number in range(32)]
    assert await surveys.survey("due", few) == (few, 0)
    many = [f"q{number}" for number in range(1201)]
    await q.client.zadd(keys.scheduled("q3"), {"a": 1})
    await q.client.zadd(keys.retry("q1200"), {"a": 1})
    found, now_ms = await surveys.survey("due", many)
    assert found == ["q3", "q1200"]
    assert now_ms > 0


async def test_a_server_that_does_not_answer_leaves_nothing_out() -> None:
    many = [f"q{number}" for number in range(40)]
    assert await Surveys(connect("unix:///nowhere/x.sock")).survey("leases", many) == (many, 0)
