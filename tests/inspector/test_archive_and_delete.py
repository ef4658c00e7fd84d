"""archive and delete: out of any place but active, with their locks; the archive keeps to its size, hashes and all."""

from __future__ import annotations

import pytest

from tests.inspector.support import Bench
from tests.support.keyspace import Key, check_invariant
from tests.support.queue import NOW, differences
from veredus.errors import ConfigError, QueueNotFound, TaskNotFound, WrongState
from veredus.model.archive import ArchiveLimits

WAITING = ["pending", "scheduled", "retry", "completed", "aggregating"]
SECONDS = str(NOW // 1000)


@pytest.mark.parametrize("state", WAITING)
async def test_archive_has_all_its_effects_and_frees_the_lock(q: Bench, state: str) -> None:
    await q.fill(state, "a", lock=q.lock())
    if state == "completed":
        await q.client.set(q.lock(), "a", ex=600)
    before = await q.everything()
    assert before[q.lock()].value == "a"
    await q.inspector.archive("q", "a")
    changed = differences(before, await q.everything())
    fields = before[q.task("a")].value | {"state": "archived"}
    fields.pop("pending_since", None)
    assert changed.pop(q.key("archived")) == Key("zset", {"a": SECONDS}, "none")
    assert changed.pop(q.task("a")) == Key("hash", fields, "none")
    assert changed.pop(q.lock()) is None
    places = {"g:g", "groups"} if state == "aggregating" else {state}
    places |= {"due"} if state in ("scheduled", "retry") else set()
    assert changed == dict.fromkeys(map(q.key, places))
    assert await check_invariant(q.client) == []


@pytest.mark.parametrize("state", [*WAITING, "archived"])
async def test_delete_leaves_nothing_and_frees_the_lock(q: Bench, state: str) -> None:
    await q.fill(state, "a", lock=q.lock())
    await q.client.set(q.lock(), "a", ex=600)
    await q.inspector.delete("q", "a")
    left = await q.everything()
    assert [name for name in left if "processed" not in name and "failed" not in name and "batch" not in name] == [
        "asynq:queues"
    ]


@pytest.mark.parametrize("verb", ["archive", "delete"])
async def test_a_lock_that_another_task_has_stays(q: Bench, verb: str) -> None:
    await q.fill("pending", "a", lock=q.lock())
    await q.client.set(q.lock(), "other")
    await getattr(q.inspector, verb)("q", "a")
    assert await q.client.get(q.lock()) == b"other"


@pytest.mark.parametrize(
    ("verb", "state", "words"),
    [
        ("archive", "active", "running; cancel it"),
        ("archive", "archived", "already"),
        ("delete", "active", "cancel it"),
    ],
)
async def test_they_refuse_what_runs(q: Bench, verb: str, state: str, words: str) -> None:
    await q.fill(state, "a")
    before = await q.everything()
    with pytest.raises(WrongState, match=words):
        await getattr(q.inspector, verb)("q", "a")
    assert await q.everything() == before


async def test_a_full_archive_loses_its_oldest_with_hash_and_lock(q: Bench) -> None:
    await q.fill("archived", "old", "new", lock="")
    await q.client.hset(q.task("old"), "unique_key", q.lock())
    await q.client.set(q.lock(), "old")
    await q.pend("a")
    q.inspector._tasks.limits = ArchiveLimits(size=2)
    await q.inspector.archive("q", "a")
    assert sorted(await q.scores("archived")) == ["a", "new"]
    assert await q.client.exists(q.task("old"), q.lock()) == 0
    assert await check_invariant(q.client) == []


async def test_those_who_wait_for_it_are_told(q: Bench) -> None:
    await q.pend("a", "b")
    for one in "ab":
        await q.client.hset(q.task(one), "waited", "ears")
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("ears")
        assert await pubsub.get_message(timeout=10)
        await q.inspector.archive("q", "a")
        await q.inspector.delete("q", "b")
        heard = [(await pubsub.get_message(timeout=10))["data"].split()[0] for _ in "ab"]
    assert heard == [b"archived", b"cancelled"]


async def test_cancel_processing_reaches_whoever_listens(q: Bench) -> None:
    assert await q.inspector.cancel_processing("a") == 0
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("asynq:cancel")
        assert await pubsub.get_message(timeout=10)
        assert await q.inspector.cancel_processing("a") == 1


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "aggregating"])
async def test_cancel_ends_a_waiting_task_as_asked(q: Bench, state: str) -> None:
    await q.fill(state, "a", "b")
    assert await q.inspector.cancel("q", "a") == "cancelled"
    assert await q.inspector.cancel("q", "b", then="delete") == "cancelled"
    assert await q.scores("archived") == {"a": NOW // 1000}
    assert (await q.inspector.task("q", "a")).last_error == "context canceled"
    assert not await q.client.exists(q.task("b"))
    assert await q.inspector.cancel("q", "a") == "already ended"
    assert await check_invariant(q.client) == []


async def test_cancel_marks_a_running_task_and_tells_its_worker_by_asynqs_channel(q: Bench) -> None:
    await q.fill("active", "a")
    async with q.client.pubsub() as pubsub:
        await pubsub.subscribe("asynq:cancel")
        assert await pubsub.get_message(timeout=10)
        assert await q.inspector.cancel("q", "a", then="delete") == "cancelling"
        assert (await pubsub.get_message(timeout=10))["data"] == b"a"
    assert (await q.fields("a"))["cancel"] == "delete"


async def test_cancel_of_what_is_not_there_says_so(q: Bench) -> None:
    await q.fill("active", "report-1")
    with pytest.raises(TaskNotFound, match="did you mean 'report-1'"):
        await q.inspector.cancel("q", "report-2")
    with pytest.raises(QueueNotFound, match="did you mean 'q'"):
        await q.inspector.cancel("qq", "report-1")
    with pytest.raises(ConfigError, match="archive, delete, retry"):
        await q.inspector.cancel("q", "report-1", then="drop")
