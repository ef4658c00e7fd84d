"""The attempts of a task: each has its start, end, worker, outcome, error and log lines, however it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration import attempt_tasks
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, AttemptInfo, Handle, Sensitive, current
from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.dashboard.read_routes import READINGS
from veredus.model.attempts import KEPT
from veredus.model.verdict import LEASE_EXPIRED
from veredus.store.store import Store
from veredus.store.tasks.work import Work

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


@pytest.fixture
async def tried(url: str) -> AsyncIterator[App]:
    attempt_tasks.app.use(url)
    yield attempt_tasks.app
    await attempt_tasks.app.close()


async def _one(handle: Handle[Any]) -> AttemptInfo:
    (attempt,) = await handle.attempts()
    return attempt


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_an_attempt_that_raises(tried: App, look: Look, where: str) -> None:
    began = time.time()
    async with tried.worker(**FAST, process_pool=1) as worker:
        handle = await attempt_tasks.TASKS[where].enqueue("raise")
        await look.ends(handle.id, "archived")
        attempt = await _one(handle)
        assert attempt.worker.split(":")[2] == worker.worker_id[:13]
    assert (attempt.attempt, attempt.outcome) == (1, "failed")
    assert (attempt.error_class, attempt.error) == ("ValueError", "no card 4242")
    assert attempt.place.startswith("tests.integration.attempt_tasks.fail:")
    assert attempt.traceback.endswith("ValueError: no card 4242")
    assert "in fail" in attempt.traceback
    assert "4242" not in attempt.traceback.splitlines()[-2].replace('"no card 4242"', "")
    assert [text for _, text in attempt.log] == ["about to raise"]
    assert attempt.started is not None
    assert attempt.ended is not None
    assert began - 2 < attempt.started_at <= attempt.log[0][0] <= attempt.ended_at < time.time() + 2


async def test_attempts_that_end_without_the_handlers_will(tried: App, look: Look) -> None:
    """Timed out on the loop and in a process, killed, cancelled, and a payload that does not fit."""
    async with tried.worker(**FAST, process_pool=2):
        slow = await attempt_tasks.on_loop.using(timeout=1).enqueue("hang")
        stuck = await attempt_tasks.in_process.using(timeout=1).enqueue("hang")
        killed = await attempt_tasks.in_process.enqueue("die")
        unreadable = await tried.enqueue("loop", b'{"no": 1}', max_retry=0)
        cancelled = await attempt_tasks.on_loop.enqueue("hang")
        await until(lambda: look.client.zscore("asynq:{default}:lease", cancelled.id))
        await cancelled.cancel()
        for handle in (slow, stuck, killed, unreadable, cancelled):
            await look.ends(handle.id, "archived")
    one = await _one(slow)
    assert (one.outcome, one.error_class, one.error) == (
        "timed out",
        "veredus.errors.TaskTimeout",
        "ran over its timeout of 1 s",
    )
    assert one.place.startswith("tests.integration.attempt_tasks.on_loop:")
    assert "await asyncio.Event().wait()" in one.traceback
    assert "eager_runner" not in one.traceback, "what runs handlers is of no use to readers"
    assert one.seconds is not None
    assert 0.9 < one.seconds < 10
    assert [text for _, text in one.log] == ["about to hang"]
    one = await _one(stuck)
    assert (one.outcome, [text for _, text in one.log]) == ("timed out", ["about to hang"])
    one = await _one(killed)
    assert (one.outcome, one.error) == ("killed", "the process of this task was ended by SIGKILL")
    assert one.error_class.endswith("ProcessDied")
    assert [text for _, text in one.log] == ["about to die"]
    one = await _one(unreadable)
    assert (one.outcome, one.error_class) == ("unreadable", "veredus.errors.PayloadError")
    assert "does not fit" in one.error
    assert one.place.startswith("tests.integration.attempt_tasks.on_loop:"), "no line of it ran"
    one = await _one(cancelled)
    assert (one.outcome, one.error, one.traceback) == ("cancelled", "context canceled", "")


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_the_place_of_a_payload_that_does_not_fit_a_model_is_its_handler(
    tried: App, look: Look, where: str
) -> None:
    """Not the line of pydantic's that noticed."""
    name = f"model_{where}"
    async with tried.worker(**FAST, process_pool=1):
        handle = await tried.enqueue(name, b'{"number": "no number"}', max_retry=0)
        await look.ends(handle.id, "archived")
    one = await _one(handle)
    code = attempt_tasks.MODELS[where].function.__code__
    assert (one.outcome, one.place) == ("unreadable", f"tests.integration.attempt_tasks.{name}:{code.co_firstlineno}")


async def test_all_attempts_of_a_task_stay_also_after_its_success(tried: App, look: Look) -> None:
    async with tried.worker(**FAST):
        handle = await attempt_tasks.flaky.enqueue(2)
        long = await attempt_tasks.flaky.enqueue(12)
        await look.ends(handle.id, "completed")
        await look.ends(long.id, "completed")
    attempts = await handle.attempts()
    assert [(one.attempt, one.outcome, one.error) for one in attempts] == [
        (1, "failed", "1"),
        (2, "failed", "2"),
        (3, "succeeded", ""),
    ]
    assert [one.ended_at for one in attempts] == sorted(one.ended_at for one in attempts)
    many = await long.attempts()
    assert len(many) == KEPT
    assert [one.attempt for one in many] == list(range(4, 14)), "the last ones"
    assert many[-1].outcome == "succeeded"


async def test_a_task_without_a_retention_leaves_nothing(tried: App, look: Look) -> None:
    async with tried.worker(**FAST):
        handle = await attempt_tasks.on_loop.enqueue("raise")
        await look.ends(handle.id, "archived")
        await tried.inspector().delete("default", handle.id)
    assert await handle.attempts() == []


async def test_an_attempt_of_a_worker_that_died_says_when_it_began(tried: App, look: Look) -> None:
    handle = await attempt_tasks.flaky.enqueue(0)
    began = await look.now_ms() / 1000
    redis = tried.open_redis()
    dead = Work(redis, "dead-worker-id", lease_ms=300, time=lambda: began)
    assert len((await dead.dequeue("default", 1)).rows) == 1
    async with tried.worker(**FAST):
        await look.ends(handle.id, "completed")
    await redis.close()
    lost, done = await handle.attempts()
    assert (lost.attempt, lost.outcome, lost.worker) == (1, "lease lost", "dead-worker-i")
    assert abs(lost.started_at - began) < 0.01
    assert lost.ended_at > lost.started_at
    assert "the worker died" in lost.error
    assert (done.attempt, done.outcome) == (2, "succeeded")
    assert (await handle.status()).error == LEASE_EXPIRED


async def test_a_handler_that_its_worker_gives_back(tried: App, look: Look) -> None:
    async with tried.worker(**FAST | {"shutdown_timeout": 0}):
        handle = await attempt_tasks.on_loop.enqueue("hang")
        await until(lambda: look.client.zscore("asynq:{default}:lease", handle.id))
    await look.ends(handle.id, "pending")
    one = await _one(handle)
    assert (one.attempt, one.outcome) == (1, "given back")
    assert one.error == "the worker stopped before the handler had ended"


async def test_a_message_that_is_none(tried: App, look: Look) -> None:
    handle = await attempt_tasks.on_loop.enqueue("raise")
    await look.client.hset(look.task(handle.id), "msg", b"\xff\xff")
    async with tried.worker(**FAST):
        await look.ends(handle.id, "archived")
    one = await _one(handle)
    assert one.outcome == "unreadable"
    assert one.error


async def test_a_damaged_count_loses_no_settlement(tried: App, look: Look) -> None:
    handle = await attempt_tasks.on_loop.enqueue("raise")
    await look.client.hset(look.task(handle.id), mapping={"attempts": "many", "attempt:3": "{"})
    async with tried.worker(**FAST):
        await look.ends(handle.id, "archived")
    assert (await _one(handle)).outcome == "failed"


async def test_redact_decides_what_is_stored_and_shown(url: str, look: Look) -> None:
    asked: set[tuple[str, str]] = set()

    def hide(text: str, what: Sensitive) -> str:
        asked.add((what.kind, what.type))
        if "fail the hook" in text:
            raise RuntimeError
        return text.replace("4242", "****")

    app = App(url, redact=hide)
    seen = asyncio.Event()

    @app.task(name="pay", max_retry=0)
    async def pay(card: str) -> None:
        current().log(f"card {card}")
        if card == "wait 4242":
            await seen.wait()
            return
        raise ValueError(f"declined {card}")

    async with app.worker(**FAST), app:
        handle, broken = await pay.enqueue("4242"), await pay.enqueue("fail the hook")
        running = await pay.enqueue("wait 4242")
        await look.ends(handle.id, "archived")
        await look.ends(broken.id, "archived")
        await until(lambda: look.client.keys("asynq:workers:{*"))
        (entries,) = [await look.client.hvals(name) for name in await look.client.keys("asynq:workers:{*")]
        assert b"****" in b"".join(entries)
        assert b"4242" not in b"".join(entries)
        seen.set()
        await look.ends(running.id, "gone")
        stored = await look.fields(handle.id)
        message = await look.message(handle.id)
        assert b"4242" in message.payload, "what the handler needs stays"
        assert message.error_msg == "ValueError: declined ****"
        assert b"4242" not in stored["traceback"] + stored["attempt:1"]
        one = await _one(handle)
        assert (one.error, [text for _, text in one.log]) == ("declined ****", ["card ****"])
        inspector = app.inspector()
        task = await inspector.task("default", handle.id)
        assert task.is_redacted
        assert b"4242" not in task.payload
        assert [found.payload for found in await inspector.tasks("default", "archived")].count(task.payload) == 1
        assert [found.id async for found in inspector.search("default", "archived", payload="4242")] == [handle.id]
        hidden = await _one(broken)
        assert hidden.error == hidden.log[0][1] == "(redacted: the hook raised RuntimeError)"
        assert ("payload", "pay") in asked
        assert ("traceback", "pay") in asked
        assert ("log", "pay") in asked
        opened = Opened(asyncio.get_running_loop(), app.open_redis(), app)
        shown = await READINGS["task"].read(opened, Form({"queue": "default", "id": handle.id}, ("queue", "id")))
        assert shown["attempts"][0]["error"] == "declined ****"
        assert "4242" not in str(shown)
        assert "edit" not in shown["actions"]
        await opened.redis.close()


async def test_redact_decides_what_is_shown_of_attempts_that_others_stored(url: str, look: Look) -> None:
    """A worker without the hook, such as one of an earlier release."""
    async with App(url) as other:

        @other.task(name="pay", max_retry=0)
        async def pay(card: str) -> None:
            current().log(f"card {card}")
            raise ValueError(f"declined {card}")

        async with other.worker(**FAST):
            handle = await pay.enqueue("4242")
            await look.ends(handle.id, "archived")
    kinds: set[tuple[str, str]] = set()

    def hide(text: str, what: Sensitive) -> str:
        kinds.add((what.kind, what.type))
        return text.replace("4242", "****")

    async with App(url, redact=hide) as app:
        (one,) = await app.inspector().attempts("default", handle.id)
        assert (one.error, one.log[0][1]) == ("declined ****", "card ****")
        assert "ValueError: declined ****" in one.traceback
        assert {("error", "pay"), ("traceback", "pay"), ("log", "pay")} <= kinds


async def test_what_only_redis_knows(tried: App, look: Look) -> None:
    """Attempts of an earlier version or of Go are missing, and the list says so."""
    handle = await attempt_tasks.flaky.enqueue(2)
    async with tried.worker(**FAST):
        await look.ends(handle.id, "completed")
    await look.client.hdel(look.task(handle.id), "attempt:2")
    assert [(one.attempt, one.outcome) for one in await handle.attempts()] == [
        (1, "failed"),
        (2, "not recorded"),
        (3, "succeeded"),
    ]
    store = Store(tried.open_redis())
    assert await tried.inspector().attempts("default", handle.id) == await handle.attempts()
    await store.redis.close()
