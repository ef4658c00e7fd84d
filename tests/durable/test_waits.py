"""Waits: a handler leaves its worker, and goes on when what it waits for has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.durable import process_tasks
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import forever, until
from veredus import App, Limit, current
from veredus.client.emitting import encode_event
from veredus.errors import ConfigError, TaskCancelled, TaskFailed
from veredus.store.store import Store
from veredus.store.tasks.runs import WakeRow
from veredus.wire import keys
from veredus.worker.wait_looker import WaitLooker

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


async def parked(look: Look, task_id: str) -> dict[str, bytes]:
    """The task's fields, once it waits."""

    async def is_parked() -> bool:
        fields = await look.fields(task_id)
        return "waiting" in fields and fields["state"] == b"scheduled"

    await until(is_parked)
    return await look.fields(task_id)


async def test_ruling_06_a_waiting_task_uses_no_slot_no_lease_and_no_attempt(app: App, look: Look) -> None:
    seen = []

    @app.task(max_retry=0)
    async def order() -> Any:
        seen.append(current().attempt)
        return await current().wait_for("approved")

    @app.task
    async def other() -> str:
        return "ran"

    async with app.worker(**{**SETTINGS, "concurrency": 1}):
        waiting = [await order.enqueue() for _ in range(3)]
        for one in waiting:
            await parked(look, one.id)
        assert await (await other.enqueue()).result(timeout=20) == "ran"
        assert await look.scores("lease") == {}
        assert await look.active() == []
        assert await look.scores("scheduled") == dict.fromkeys([one.id for one in waiting], 9999999998)
        assert (await waiting[0].status()).retried == 0
        assert await look.counters() == (1, 0)
        assert await app.emit("approved", {"by": "ada"})
        assert [await one.result(timeout=20) for one in waiting] == [{"by": "ada"}] * 3
    assert seen == [1] * 6
    assert await look.scores("waits") == {}


async def test_ruling_09_a_sleep_is_never_early_and_its_end_is_stored_at_the_first_call(app: App, look: Look) -> None:
    began: list[float] = []
    ends = []

    @app.task
    async def nap() -> str:
        began.append(time.monotonic())
        if len(began) == 2:
            fields = await look.fields(current().id)
            ends.append(fields["z:nap"])
            raise RuntimeError("the end of the sleep does not move")
        await current().sleep("nap", timedelta(milliseconds=300))
        ends.append((await look.fields(current().id))["z:nap"])
        return "awake"

    async with app.worker(**SETTINGS):
        assert await (await nap.enqueue()).result(timeout=20) == "awake"
    assert began[1] - began[0] >= 0.3
    assert len(began) == 3
    assert ends[0] == ends[1]


async def test_ruling_17_the_first_emit_counts_also_before_anybody_waits(app: App) -> None:
    @app.task
    async def order() -> list[Any]:
        return [await current().wait_for("paid:7"), await current().wait_for("paid:7", timeout=5)]

    assert [await app.emit("paid:7", 1), await app.emit("paid:7", 2)] == [True, False]
    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == [1, 1]


async def test_an_event_is_kept_for_its_ttl(app: App, redis_client: Any) -> None:
    await app.emit("short", ttl=60)
    await app.emit("long")
    assert 59_000 < await redis_client.pttl(keys.event("short")) <= 60_000
    assert 6.9 < await redis_client.pttl(keys.event("long")) / 86_400_000 <= 7


@pytest.mark.parametrize(
    ("event", "payload", "text"),
    [("veredus:x", 1, "does not begin with 'veredus:'"), ("", 1, "a text of 1 to 200"), ("a", None, "but null")],
)
async def test_ruling_17_what_cannot_be_emitted(app: App, event: str, payload: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await app.emit(event, payload)


async def test_ruling_09_timed_out_is_stored_before_none_is_returned(app: App, look: Look) -> None:
    answers: list[Any] = []

    @app.task
    async def order() -> Any:
        answer = await current().wait_for("approved", timeout=0.1)
        answers.append(answer)
        if len(answers) == 1:
            assert (await look.fields(current().id))["e:approved"] == b"-"
            await app.emit("approved", "too late")
            raise RuntimeError("again")
        return await current().wait_for("approved", timeout=5)

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == "too late"
    assert answers == [None, None]


async def test_ruling_06_a_waiting_task_that_is_run_early_looks_and_parks_again_without_its_handler(
    app: App, look: Look
) -> None:
    """Go's RunAllScheduled moves tasks to pending, and knows nothing of the field `waiting`."""
    began = []

    @app.task
    async def order() -> Any:
        began.append(1)
        return await current().wait_for("approved", timeout=3600)

    async with app.worker(**SETTINGS):
        handles = [await order.enqueue() for _ in range(30)]
        for one in handles:
            await parked(look, one.id)
        before = await look.scores("scheduled")
        for one in handles:
            await look.client.zrem(keys.scheduled("default"), one.id)
            await look.client.hset(look.task(one.id), "state", "pending")
            await look.client.lpush(keys.pending("default"), one.id)
        for one in handles:
            await parked(look, one.id)

        async def is_as_before() -> bool:
            return await look.scores("scheduled") == before and await look.pending() == []

        await until(is_as_before)
        assert len(began) == 30
        async with app.inspector() as inspector:
            await inspector.run("default", handles[0].id)
        await until(is_as_before)
        assert len(began) == 30
        await app.emit("approved", 1)
        assert [await one.result(timeout=20) for one in handles] == [1] * 30
    assert len(began) == 60


async def test_ruling_10_a_wake_up_that_was_lost_is_found_by_a_look(app: App, look: Look) -> None:
    """The note that a task waits has lapsed."""

    @app.task
    async def order() -> Any:
        return await current().wait_for("approved")

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await parked(look, handle.id)
        await look.client.delete(keys.waiters("approved"))
        await app.emit("approved", "late")
        assert await handle.result(timeout=20) == "late"


async def test_an_event_whose_emitter_died_is_found_by_a_look(app: App, look: Look, store: Store) -> None:
    """It had kept the event, and woken nobody. The look removes its note."""

    @app.task
    async def order() -> Any:
        return await current().wait_for("approved")

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await parked(look, handle.id)
        await store.emitted.emit("approved", "c" * 16, encode_event("approved", "late"), 60_000)
        assert await handle.result(timeout=20) == "late"
    assert await look.client.exists(keys.waiters("approved")) == 0


async def test_ruling_08_what_comes_while_the_handler_leaves_is_not_missed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the park itself: nobody looks later."""

    async def blind(self: WaitLooker, queues: Sequence[str]) -> None:
        pass

    monkeypatch.setattr(WaitLooker, "look", blind)
    began = []

    @app.task
    async def order() -> Any:
        began.append(1)
        try:
            return await current().wait_for("approved")
        finally:
            if len(began) == 1:
                await app.emit("approved", "meanwhile")

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == "meanwhile"
    assert len(began) == 2


async def test_ruling_07_the_park_is_written_when_the_handler_has_left(app: App, look: Look) -> None:
    cleaned, release = asyncio.Event(), asyncio.Event()
    states: list[tuple[bool, str]] = []

    @app.task
    async def order() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                await current().sleep("nap", 3600)
        finally:
            if not cleaned.is_set():
                states.append((current().parking, await look.state(current().id)))
                cleaned.set()
                await release.wait()

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await cleaned.wait()
        assert states == [(True, "active")]
        release.set()
        await parked(look, handle.id)
        await handle.cancel(then="delete")


async def test_ruling_07_what_a_handler_raises_or_returns_while_it_leaves_is_not_judged(
    app: App, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = []
    kinds: list[type[BaseException]] = []
    begun = []

    @app.task(max_retry=0)
    async def raises() -> None:
        begun.append("raises")
        try:
            await current().sleep("nap", 0.2)
        except asyncio.CancelledError:
            raise ValueError("cleaning failed") from None

    @app.task(max_retry=0)
    async def catches_everything() -> str:
        begun.append("catches")
        for _ in range(3):
            try:
                await current().sleep("nap", 0.2)
            except BaseException as exc:
                kinds.append(type(exc))
        return "never" if kinds and begun.count("catches") == 1 else "done"

    async with app.worker(**SETTINGS, on_error=lambda error, job: errors.append(error)):
        first, second = await raises.enqueue(), await catches_everything.using(retention=60).enqueue()
        assert await second.result(timeout=20) == "done"
        await look.ends(first.id, "gone")
    assert errors == []
    assert begun.count("raises") == 2
    assert kinds[0] is asyncio.CancelledError
    assert asyncio.CancelledError in kinds
    assert "cleaning failed" in caplog.text


async def test_ruling_05_two_waits_at_once_are_refused(app: App) -> None:
    over = asyncio.Event()

    async def slow() -> None:
        await over.wait()

    @app.task(max_retry=0)
    async def waits() -> None:
        await asyncio.gather(current().wait_for("a"), current().wait_for("b"))

    @app.task(max_retry=0)
    async def beside_a_step() -> None:
        await asyncio.gather(current().step(slow, name="slow"), current().sleep("nap", 1))

    async with app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="ConcurrentWait: 'b' while 'a' is not finished"):
            await (await waits.enqueue()).result(timeout=20)
        with pytest.raises(TaskFailed, match="'nap' while 'slow' is not finished"):
            await (await beside_a_step.enqueue()).result(timeout=20)
        over.set()


async def test_waits_in_threads(app: App, look: Look) -> None:
    begun, left = [], []

    @app.task
    def order() -> Any:
        begun.append(1)
        try:
            current().sleep_sync("nap", 0.1)
            return current().wait_for_sync("approved", timeout=60)
        finally:
            left.append(current().parking)

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        await until(lambda: len(left) == 2)
        await parked(look, handle.id)
        assert await app.emit("approved", [1])
        assert await handle.result(timeout=20) == [1]
    assert left == [True, True, False]


async def test_a_waiting_task_can_be_cancelled(app: App, look: Look) -> None:
    @app.task
    async def order() -> None:
        await current().wait_for("approved")

    async with app.worker(**SETTINGS):
        one, other = await order.enqueue(), await order.enqueue()
        await parked(look, one.id)
        await parked(look, other.id)
        assert (await one.cancel()).value == "cancelled"
        with pytest.raises(TaskCancelled):
            await one.result(timeout=20)
        assert (await other.cancel(then="delete")).value == "cancelled"
        assert await look.state(other.id) == "gone"

        async def forgotten() -> bool:
            return await look.scores("waits") == {}

        await until(forgotten)


async def test_a_cancel_while_the_handler_leaves_is_not_lost(app: App, look: Look) -> None:
    @app.task
    async def order() -> None:
        try:
            await current().wait_for("never")
        finally:
            await app.cancel(current().id)

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=20)


async def test_ruling_14_a_waiting_task_keeps_its_order_key_and_its_unique_lock(app: App, look: Look) -> None:
    order_of: list[str] = []

    @app.task(unique_for=60)
    async def lock(n: int) -> Any:
        return await current().wait_for("unlock")

    @app.task
    async def lane(name: str) -> None:
        order_of.append(f"{name} begins")
        if name == "first":
            await current().wait_for("go")
        order_of.append(f"{name} ends")

    async with app.worker(**SETTINGS):
        held = await lock.enqueue(1)
        first = await lane.using(order_key="k").enqueue("first")
        await parked(look, first.id)
        second = await lane.using(order_key="k", retention=60).enqueue("second")
        await parked(look, held.id)
        assert (await look.client.ttl((await look.message(held.id)).unique_key)) > 3000
        assert not (await lock.enqueue(1)).created
        await app.emit("go")
        await app.emit("unlock")
        await second.result(timeout=20)
        await held.result(timeout=20)
    assert order_of == ["first begins", "first begins", "first ends", "second begins", "second ends"]


async def test_ruling_14_a_waiting_task_gives_back_its_room_within_limits(app: App, look: Look) -> None:
    began: list[int] = []

    @app.task(limit=Limit(concurrency=1))
    async def order(n: int) -> Any:
        began.append(n)
        return await current().wait_for("go")

    async with app.worker(**SETTINGS):
        handles = [await order.enqueue(n) for n in range(3)]
        for one in handles:
            await parked(look, one.id)
        await app.emit("go", "on")
        assert [await one.result(timeout=20) for one in handles] == ["on"] * 3
    assert sorted(began) == [0, 0, 1, 1, 2, 2]


async def test_ruling_18_expires_counts_until_the_first_start(app: App) -> None:
    @app.task(expires=1)
    async def order() -> str:
        await current().sleep("nap", 1.5)
        return "in time"

    async with app.worker(**SETTINGS):
        assert await (await order.enqueue()).result(timeout=20) == "in time"


async def test_ruling_18_the_deadline_counts_over_the_whole_run(app: App) -> None:
    @app.task(max_retry=5)
    async def order() -> None:
        await current().wait_for("never")

    async with app.worker(**SETTINGS):
        handle = await order.using(deadline=datetime.now(UTC) + timedelta(seconds=2)).enqueue()
        with pytest.raises(TaskFailed, match="deadline exceeded"):
            await handle.result(timeout=20)
        assert (await handle.status()).retried == 0


async def test_ruling_17_a_go_service_emits_by_enqueueing_a_task(app: App) -> None:
    @app.task
    async def order() -> Any:
        return await current().wait_for("approved")

    async with app.worker(**SETTINGS):
        handle = await order.enqueue()
        sent = await app.enqueue("veredus:emit", {"event": "approved", "payload": {"by": "go"}})
        assert await sent.result(timeout=20) is True
        assert await handle.result(timeout=20) == {"by": "go"}


async def test_a_handler_in_a_process_gets_a_clear_error(url: str) -> None:
    app = process_tasks.app
    app.use(url)
    async with app, app.worker(**SETTINGS):
        with pytest.raises(TaskFailed, match="got 'process', expected 'loop' or 'thread' for a handler with durable"):
            await (await process_tasks.order.enqueue()).result(timeout=20)


async def test_ruling_11_an_id_that_is_used_again_does_not_get_the_wake_ups_of_the_one_before(
    app: App, look: Look, store: Store
) -> None:
    @app.task
    async def nightly(night: int) -> Any:
        return await current().wait_for(f"night:{night}")

    async with app.worker(**SETTINGS):
        first = await nightly.using(task_id="nightly").enqueue(1)
        mark = (await parked(look, "nightly"))["run"]
        await first.cancel()
        second = await nightly.using(task_id="nightly", replace=True).enqueue(2)
        assert (await parked(look, "nightly"))["run"] != mark
        await app.emit("night:1", "yesterday")
        await store.runs.wake("default", [WakeRow("nightly", mark.decode(), "e:night:2", b'+"late"')])
        await app.emit("night:2", "today")
        assert await second.result(timeout=20) == "today"
