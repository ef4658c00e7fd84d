"""What Go wrote, we run: golden dumps are loaded byte for byte, and our worker does with each task what Go would."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.interop import protobuf
from tests.interop.golden import DAYS_90, Dump, Row, golden_dump, restore, take
from tests.support.golden import scenarios
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Job

SCENARIOS = [name for name in scenarios() if not name.startswith(("group-", "scheduler"))] + ["group-scheduled-before"]
RECORDS = ("asynq:servers", "asynq:workers")
LEASE_EXPIRED = "asynq: task lease expired"


class Recorder:
    """An app whose one handler takes every type and notes what it was given."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.jobs: list[Job] = []

        @self.app.handler("*")
        async def note(job: Job) -> None:
            self.jobs.append(job)

    def seen(self) -> Counter[Any]:
        return Counter(
            (job.queue, job.id, job.type, job.payload, tuple(sorted(job.headers.items()))) for job in self.jobs
        )


def prepared(name: str, *, lease_end: int | None = None, expired: bool = False) -> Dump:
    """A golden dump without records of servers, with everything delayed due in the past and leases ended as told."""
    now = int(time.time())
    rows = {}
    for key, row in golden_dump(name).rows.items():
        if key.startswith(RECORDS):
            continue
        if key.endswith((":scheduled", ":retry")):
            row = _all_at(row, now - 60)
        elif key.endswith(":lease"):
            row = _all_at(row, now - 31 if lease_end is None else lease_end)
        elif key.endswith(":completed"):
            row = _all_at(row, now - 1 if expired else now + 3600)
        rows[key] = row
    return Dump(now, rows, frozenset())


def _all_at(row: Row, at: int) -> Row:
    return dataclasses.replace(row, value=dict.fromkeys(row.value, b"%d" % at))


def queues_of(dump: Dump) -> list[str]:
    row = dump.rows.get("asynq:queues")
    return sorted(name.decode() for name in row.value) if row else ["default"]


class Fate:
    """What is to become of a dump once our worker has worked on it: built by hand from the rules for Go servers."""

    def __init__(self, dump: Dump) -> None:
        self.rows = {key: (row.type, row.value) for key, row in dump.rows.items()}
        self.runs: Counter[Any] = Counter()
        self.completed: list[tuple[str, str]] = []
        self.overdue: list[tuple[str, str]] = []
        self.day = datetime.now(UTC).strftime("%Y-%m-%d")
        self.rows["asynq:queues"] = ("set", frozenset(queue.encode() for queue in queues_of(dump)))
        for queue in queues_of(dump):
            self._queue(queue)

    def _queue(self, queue: str) -> None:
        prefix = f"asynq:{{{queue}}}:"
        if prefix + "paused" in self.rows:
            return
        _, active = self.rows.pop(prefix + "active", ("", []))
        self.rows.pop(prefix + "lease", None)
        for _ in active:  # their workers are gone: a failure each, then due at once
            self._count(prefix, "processed", "failed")
        waiting = [*active]
        for place in ("pending", "scheduled", "retry"):
            waiting += self.rows.pop(prefix + place, ("", []))[1]
        for task_id in waiting:
            self._task(queue, prefix, task_id.decode())

    def _task(self, queue: str, prefix: str, task_id: str) -> None:
        fields = self.rows[f"{prefix}t:{task_id}"][1]
        message, _ = protobuf.decode("TaskMessage", fields[b"msg"])
        if 0 < message.get("deadline", 0) < time.time():
            self.overdue.append((queue, task_id))
            self._count(prefix, "processed", "failed")
            del self.rows[f"{prefix}t:{task_id}"]
            return
        headers = tuple(sorted(message.get("headers", {}).items()))
        self.runs[(queue, task_id, message["type"], message.get("payload", b""), headers)] += 1
        self._count(prefix, "processed")
        lock = message.get("unique_key", "")
        if lock and self.rows.get(lock, ("", b""))[1] == task_id.encode():
            del self.rows[lock]
        del self.rows[f"{prefix}t:{task_id}"]
        if message.get("retention"):
            self.completed.append((queue, task_id))

    def _count(self, prefix: str, *names: str) -> None:
        for name in names:
            for key in (f"{prefix}{name}", f"{prefix}{name}:{self.day}"):
                self.rows[key] = ("string", b"%d" % (int(self.rows.get(key, ("", 0))[1]) + 1))


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_task_that_go_left_is_run(name: str, url: str, redis_client: Any) -> None:
    before = prepared(name)
    await restore(redis_client, before)
    fate, recorder = Fate(before), Recorder(url)

    async def all_settled() -> bool:
        return recorder.seen() == fate.runs and not await _unsettled(redis_client, before, fate)

    async with recorder.app.worker(queues_of(before), lease=1.0, sweep=0.2):
        await until(all_settled, what=f"{fate.runs}")
    await recorder.app.close()
    after = await take(redis_client)
    assert recorder.seen() == fate.runs
    assert await check_invariant(redis_client) == []

    left = dict(after.rows)
    for key in list(left):
        if ":batch:" in key:
            assert 0 < left.pop(key).pttl_ms <= 600_000
        elif ":processed:" in key or ":failed:" in key:
            assert abs(left[key].pttl_ms / 1000 - DAYS_90) < (30 if key.endswith(fate.day) else 90 * 60)
    _check_completed(before, left, fate)
    _check_overdue(before, left, fate)
    assert {key: (row.type, row.value) for key, row in left.items()} == fate.rows
    for job in recorder.jobs:
        prefix = f"asynq:{{{job.queue}}}:"
        was_active = job.id.encode() in before.rows.get(f"{prefix}active", Row("", "", 0, [])).value
        was, _ = protobuf.decode("TaskMessage", before.rows[f"{prefix}t:{job.id}"].value[b"msg"])
        assert job.message.error_msg == (LEASE_EXPIRED if was_active else was.get("error_msg", ""))
        assert job.retried == was.get("retried", 0) + was_active


async def _unsettled(client: Any, before: Dump, fate: Fate) -> bool:
    for queue in queues_of(before):
        if f"asynq:{{{queue}}}:paused" in before.rows:
            continue
        if await client.llen(f"asynq:{{{queue}}}:pending") or await client.llen(f"asynq:{{{queue}}}:active"):
            return True
        if await client.zcard(f"asynq:{{{queue}}}:retry") != len([row for row in fate.overdue if row[0] == queue]):
            return True
    return False


def _check_completed(before: Dump, left: dict[str, Row], fate: Fate) -> None:
    """Kept with everything that stood in the hash, the message changed in one field."""
    for queue in {queue for queue, _ in fate.completed}:
        key = f"asynq:{{{queue}}}:completed"
        scores = left.pop(key).value
        ids = [task_id for where, task_id in fate.completed if where == queue]
        old = before.rows.get(key, Row("", "", 0, {})).value
        assert scores.keys() == {task_id.encode() for task_id in ids} | old.keys()
        fate.rows.pop(key, None)
        for task_id in ids:
            task_key = f"asynq:{{{queue}}}:t:{task_id}"
            was, now = before.rows[task_key].value, left.pop(task_key).value
            message, _ = protobuf.decode("TaskMessage", now[b"msg"])
            completed_at = message.pop("completed_at")
            assert abs(completed_at - time.time()) < 30
            assert 0 <= int(scores[task_id.encode()]) - completed_at - message["retention"] <= 1
            assert message == protobuf.decode("TaskMessage", was[b"msg"])[0]
            assert now[b"state"] == b"completed"
            assert now.keys() == was.keys() - {b"pending_since"} | {b"attempts", b"attempt:1"}


def _check_overdue(before: Dump, left: dict[str, Row], fate: Fate) -> None:
    """Never started, because the deadline had passed: failed once more, as in Go."""
    for queue, task_id in fate.overdue:
        task_key = f"asynq:{{{queue}}}:t:{task_id}"
        message, _ = protobuf.decode("TaskMessage", left.pop(task_key).value[b"msg"])
        was, _ = protobuf.decode("TaskMessage", before.rows[task_key].value[b"msg"])
        assert message["error_msg"] == "context deadline exceeded"
        assert message["retried"] == was.get("retried", 0) + 1
    for queue in {queue for queue, _ in fate.overdue}:
        del left[f"asynq:{{{queue}}}:retry"], left[f"asynq:{{{queue}}}:due"]


@VALKEY_ONLY
async def test_a_lease_of_go_is_left_alone_for_30_seconds_after_its_end(url: str, redis_client: Any) -> None:
    lease_end = int(time.time()) - 27
    before = prepared("server-killed", lease_end=lease_end)
    await restore(redis_client, before)
    recorder = Recorder(url)

    async def recovered() -> bool:
        return bool(await redis_client.exists("asynq:{default}:lease") == 0)

    async with recorder.app.worker({"elsewhere": 1}, lease=1.0, sweep=0.2):
        await until(recovered, what="the recovery")
        at = time.time()
    await recorder.app.close()
    assert at >= lease_end + 30
    (task_id,) = await redis_client.zrange("asynq:{default}:retry", 0, -1)
    fields = await redis_client.hgetall(b"asynq:{default}:t:" + task_id)
    message, _ = protobuf.decode("TaskMessage", fields[b"msg"])
    was, _ = protobuf.decode("TaskMessage", before.rows[f"asynq:{{default}}:t:{task_id.decode()}"].value[b"msg"])
    assert lease_end + 30 <= message.pop("last_failed_at") <= at
    assert message == was | {"error_msg": LEASE_EXPIRED, "retried": 1}
    assert await redis_client.get("asynq:{default}:failed") == b"1"


@VALKEY_ONLY
async def test_a_task_of_go_without_retries_left_is_archived_when_its_worker_died(url: str, redis_client: Any) -> None:
    before = prepared("server-killed")
    (key,) = [key for key in before.rows if ":t:" in key]
    message, _ = protobuf.decode("TaskMessage", before.rows[key].value[b"msg"])
    spent = protobuf.encode("TaskMessage", message | {"retried": 25})
    before.rows[key].value[b"msg"] = spent
    await restore(redis_client, before)
    recorder = Recorder(url)
    async with recorder.app.worker({"default": 1}, lease=1.0, sweep=0.2):
        await until(lambda: redis_client.exists("asynq:{default}:archived"), what="the archiving")
    await recorder.app.close()
    fields = await redis_client.hgetall(key)
    archived, _ = protobuf.decode("TaskMessage", fields[b"msg"])
    assert (archived["error_msg"], archived["retried"]) == (LEASE_EXPIRED, 25)
    assert fields[b"state"] == b"archived"
    assert recorder.jobs == []
    assert await check_invariant(redis_client) == []


@VALKEY_ONLY
@pytest.mark.parametrize("name", ["completed", "unique-completed"])
async def test_completed_tasks_of_go_go_when_their_retention_ends(name: str, url: str, redis_client: Any) -> None:
    before = prepared(name, expired=True)
    await restore(redis_client, before)
    recorder = Recorder(url)
    async with recorder.app.worker({"default": 1}, janitor_interval=0.1):

        async def cleaned() -> bool:
            return bool(await redis_client.exists("asynq:{default}:completed") == 0)

        await until(cleaned, what="the cleaning")
    await recorder.app.close()
    after = await take(redis_client)
    kept = {key: row.value for key, row in before.rows.items() if ":t:" not in key and not key.endswith(":completed")}
    assert {key: row.value for key, row in after.rows.items()} == kept
    assert recorder.jobs == []


@VALKEY_ONLY
@pytest.mark.parametrize("name", ["group-aggregating", "group-set-in-flight", "scheduler", "scheduler-before-first"])
async def test_what_a_worker_has_no_business_with_stays_as_go_left_it(name: str, url: str, redis_client: Any) -> None:
    """Waiting groups, sets in flight, entries and history of schedulers, locks: a worker at work beside them."""
    golden = golden_dump(name)
    before = {
        key: row
        for key, row in golden.rows.items()
        if row.pttl_ms == -1 or row.pttl_ms > 60_000
        if not key.startswith(RECORDS) and not key.endswith(":pending") and b"pending" not in _states(row)
    }
    await restore(redis_client, Dump(golden.captured, before, frozenset()))
    recorder = Recorder(url)
    async with recorder.app.worker({"default": 1, "canary": 1}, lease=0.5, sweep=0.1, janitor_interval=0.1):
        handle = await recorder.app.enqueue("canary", b"", queue="canary", delay=1.0)
        await until(lambda: redis_client.exists("asynq:{canary}:processed"), what="the canary")
    await recorder.app.close()
    assert [job.id for job in recorder.jobs] == [handle.id]
    known = before["asynq:queues"].value if "asynq:queues" in before else ()
    await redis_client.srem("asynq:queues", *({b"canary", b"default"} - set(known)))  # it has registered what it serves
    after = {key: row for key, row in (await take(redis_client)).rows.items() if "{canary}" not in key}
    assert {key: row.value for key, row in after.items()} == {key: row.value for key, row in before.items()}


def _states(row: Row) -> list[bytes]:
    return [row.value[b"state"]] if row.type == "hash" and b"state" in row.value else []
