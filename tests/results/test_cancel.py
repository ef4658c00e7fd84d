"""Cancelling: in every state, as asked, and through lost messages, lost workers and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support import golden
from tests.support.waiting import PATIENCE, forever, until
from veredus import App, CancelOutcome, Handle, Job, TaskCancelled, current
from veredus.errors import ConfigError
from veredus.store.store import Store, connect
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.wire.messages import decode_task

CANCELED = "context canceled"
STATES = {"archive": "archived", "delete": "gone", "retry": "retry"}


def hanging(app: App, **options: Any) -> Any:
    """A task that runs until it is cancelled, and the ids of its attempts."""
    runs: list[str] = []

    @app.task(name="hang", **options)
    async def hang() -> None:
        runs.append(current().id)
        await forever()

    return hang, runs


async def cancelled_state(handle: Handle[Any], look: Look, then: str) -> None:
    """The task ends as asked, with the reason in its message."""
    message = await look.ends(handle.id, STATES[then])
    if message is not None:
        assert message.error_msg == CANCELED
        assert message.last_failed_at
        assert "cancel" not in await look.fields(handle.id)


@pytest.mark.parametrize("then", ["archive", "delete"])
@pytest.mark.parametrize("place", ["pending", "scheduled", "retry"])
async def test_before_it_runs(app: App, look: Look, place: str, then: str) -> None:
    async def fail() -> None:
        raise ValueError("first")

    task = app.task(name="t", retry_delay=3600, unique_for=60)(fail)
    handle = await (task.using(delay=3600) if place == "scheduled" else task).enqueue()
    if place == "retry":
        async with app.worker(**FAST):
            await look.ends(handle.id, "retry")
    counters = await look.counters()
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: look.client.hexists(look.task(handle.id), "waited"))
    assert await handle.cancel(then) is CancelOutcome.CANCELLED
    with pytest.raises(TaskCancelled):
        await waiter
    await cancelled_state(handle, look, then)
    assert await look.counters() == counters
    assert (await task.enqueue()).created, "the unique lock is free again"
    assert not await handle.cancel(then)


async def test_a_cancel_ends_the_task_that_is_meant_and_no_other(app: App, look: Look) -> None:
    hang, runs = hanging(app)
    async with app.worker(**FAST) as worker:
        meant, other = await hang.enqueue(), await hang.enqueue()
        await until(lambda: len(runs) == 2)
        assert await meant.cancel() is CancelOutcome.CANCELLING
        await cancelled_state(meant, look, "archive")
        assert [attempt.task_id for attempt in worker._in_flight.running()] == [other.id]
        assert await look.active() == [other.id]
        await other.cancel()
        await cancelled_state(other, look, "archive")


@pytest.mark.parametrize("then", ["archive", "delete", "retry"])
async def test_while_it_runs(app: App, look: Look, then: str) -> None:
    hang, runs = hanging(app, retry_delay=3600)
    async with app.worker(**{**FAST, "lease": 300.0}):  # told at once, not by the heartbeat after 100 s
        handle = await hang.enqueue()
        await until(lambda: runs)
        assert await handle.cancel(then) is CancelOutcome.CANCELLING
        await cancelled_state(handle, look, then)
        assert await look.counters() == (1, 1 if then == "retry" else 0), "cancelled for good is no failure"
        assert runs == [handle.id]


@pytest.mark.parametrize("then", ["archive", "delete"])
async def test_a_lost_message_is_made_up_for_by_the_heartbeat(app: App, look: Look, then: str) -> None:
    hang, runs = hanging(app)
    async with app.worker(**FAST):
        handle = await hang.enqueue()
        await until(lambda: runs)
        # The mark without the message: as if the subscription had been down at that moment.
        await look.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await look.client.hset(look.task(handle.id), "cancel", then)
        await cancelled_state(handle, look, then)


@pytest.mark.parametrize("then", ["archive", "delete"])
async def test_the_recoverer_honours_the_mark_of_a_dead_worker(app: App, look: Look, url: str, then: str) -> None:
    hang, runs = hanging(app)
    handle = await hang.enqueue()
    store = Store(connect(url))
    await Work(store.redis, "dead", lease_ms=500).dequeue("default", 1)
    await store.close()
    assert await handle.cancel(then) is CancelOutcome.CANCELLING
    waiter = asyncio.create_task(handle.result(PATIENCE))
    async with app.worker(**FAST):
        with pytest.raises(TaskCancelled):
            await waiter
        await cancelled_state(handle, look, then)
    assert runs == []


@pytest.mark.parametrize("then", ["archive", "delete"])
async def test_given_back_meanwhile_it_is_not_started_again(app: App, look: Look, then: str) -> None:
    hang, runs = hanging(app)
    handle = await hang.enqueue()
    await look.client.hset(look.task(handle.id), "cancel", then)
    async with app.worker(**FAST):
        await cancelled_state(handle, look, then)
    assert runs == []


async def test_one_that_fails_in_that_moment_is_not_tried_again(app: App, look: Look) -> None:
    runs = 0

    @app.task(retry_delay=3600)
    async def fails() -> None:
        nonlocal runs
        runs += 1
        # The mark came too late for this attempt.
        await look.client.hset(look.task(current().id), "cancel", "archive")
        raise ValueError("by itself")

    async with app.worker(**{**FAST, "lease": 60.0}):
        handle = await fails.enqueue()
        await cancelled_state(handle, look, "archive")
    assert runs == 1


async def test_a_thread_is_told_and_ends_as_asked(app: App, look: Look) -> None:
    started: list[str] = []

    @app.task
    def patient() -> None:
        started.append(current().id)
        current().wait_cancelled(10)

    async with app.worker(**FAST):
        handle = await patient.enqueue()
        await until(lambda: started)
        await handle.cancel()
        await cancelled_state(handle, look, "archive")


async def test_a_cancelled_task_can_be_run_again_by_hand(app: App, look: Look) -> None:
    hang, runs = hanging(app)
    handle = await hang.enqueue()
    await handle.cancel()
    # What Asynq's inspector does to run an archived task.
    await look.client.zrem(keys.archived("default"), handle.id)
    await look.client.hset(look.task(handle.id), "state", "pending")
    await look.client.lpush(keys.pending("default"), handle.id)
    async with app.worker(**FAST):
        await until(lambda: runs)
        assert await app.cancel(handle.id, then="delete") is CancelOutcome.CANCELLING
        await look.ends(handle.id, "gone")


async def test_what_cannot_be_cancelled_says_so(app: App, look: Look) -> None:
    @app.task
    async def quick() -> int:
        return 1

    assert await app.cancel("nobody") is CancelOutcome.NOT_FOUND
    handle = await quick.enqueue()
    assert await handle.cancel("retry") is CancelOutcome.NOT_RUNNING
    async with app.worker(**FAST):
        await handle.result(PATIENCE)
    for then in STATES:
        assert await handle.cancel(then) is CancelOutcome.ALREADY_ENDED
    assert [bool(outcome) for outcome in CancelOutcome] == [True, True, False, False, False]
    with pytest.raises(ConfigError, match="did you mean 'delete'"):
        await handle.cancel("delet")


async def test_synchronous_code_cancels_too(app: App, look: Look) -> None:
    @app.task
    async def quick() -> int:
        return 1

    one, other = await quick.enqueue(), await quick.enqueue()
    assert await asyncio.to_thread(one.cancel_sync, "delete")
    assert await asyncio.to_thread(app.cancel_sync, other.id)
    assert [await look.state(h.id) for h in (one, other)] == ["gone", "archived"]


async def test_a_plain_cancel_from_gos_tools_is_a_retry_as_in_asynq(app: App, look: Look) -> None:
    recorded = golden.load("cancelled")
    theirs = next(row for row in recorded["redis"]["keys"] if ":t:" in row["key"])
    wanted = decode_task(next(golden.raw(f) for f in theirs["fields"] if f["field"] == "msg"))

    @app.handler("sleep")
    async def sleep(job: Job) -> None:
        await forever()

    async with app.worker(**FAST):
        handle = await app.enqueue("sleep", wanted.payload, max_retry=wanted.retry)
        await until(look.active)
        await until(lambda: look.client.publish(keys.CANCEL_CHANNEL, handle.id), what="somebody who listens")
        ours = await look.ends(handle.id, "retry")
        assert ours is not None
        for name in ("type", "payload", "queue", "retry", "retried", "error_msg", "timeout", "unique_key"):
            assert getattr(ours, name) == getattr(wanted, name), name
        fields = {f["field"] for f in theirs["fields"]} | {"attempts", "attempt:1"}
        assert (await look.fields(handle.id)).keys() == fields
        assert await look.counters() == (1, 1)
