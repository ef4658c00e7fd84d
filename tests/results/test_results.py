"""Waiting for results: every end, every order of events, typed, woken and not polling."""

from __future__ import annotations

import asyncio
import pickle
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.support import FAST, Look, go_message
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Handle, ResultGone, RevokeTask, SkipRetry, TaskCancelled, TaskFailed
from veredus.client import task_listener
from veredus.errors import ConfigError, ConnectionLost, PayloadError
from veredus.wire import keys


@dataclass
class Sum:
    total: int
    parts: list[int]


async def test_a_result_is_what_the_handler_returned_as_the_type_it_named(app: App, look: Look) -> None:
    @app.task
    async def add(*, parts: list[int]) -> Sum:
        return Sum(sum(parts), parts)

    async with app.worker(**FAST):
        handle = await add.enqueue(parts=[1, 2])
        assert await handle.result(PATIENCE) == Sum(3, [1, 2])
        assert await handle.result(PATIENCE) == Sum(3, [1, 2])  # and again, as long as it is kept
        assert await app.handle(handle.id, type=add.name).result(PATIENCE) == Sum(3, [1, 2])
        assert await app.handle(handle.id).result(PATIENCE) == Sum(3, [1, 2])
        status = await handle.status()
        assert (status.state, status.ended, status.error) == ("completed", True, "")


async def test_bytes_stay_bytes_and_unknown_results_are_read_as_json_if_they_are(app: App, look: Look) -> None:
    @app.task
    async def raw() -> bytes:
        return b"[1]"

    @app.task
    async def maybe_raw() -> bytes | None:
        return b"2"

    @app.task
    async def untyped():  # type: ignore[no-untyped-def]
        return b"\xff"

    @app.task
    async def number() -> Any:
        return {"n": 1}

    async with app.worker(**FAST):
        assert await (await raw.enqueue()).result(PATIENCE) == b"[1]"
        assert await (await maybe_raw.enqueue()).result(PATIENCE) == b"2"
        assert await (await untyped.enqueue()).result(PATIENCE) == b"\xff"
        assert await (await number.enqueue()).result(PATIENCE) == {"n": 1}


async def test_a_result_that_does_not_fit_its_type_is_an_error_that_says_so(app: App, look: Look) -> None:
    @app.task
    async def liar() -> int:
        return "text"  # type: ignore[return-value]

    async with app.worker(**FAST):
        with pytest.raises(PayloadError, match="the result does not fit"):
            await (await liar.enqueue()).result(PATIENCE)


async def test_none_reaches_whoever_waits(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def quiet() -> None:
        await go.wait()

    async with app.worker(**FAST):
        handle = await quiet.enqueue()
        waiter = asyncio.create_task(handle.result(PATIENCE))
        await until(lambda: _is_waited_for(look, handle))
        go.set()
        assert [*await asyncio.gather(waiter)] == [None]
        assert await look.state(handle.id) == "gone"
        with pytest.raises(ResultGone):  # nobody waited, nothing is left: that is not the same as None
            await handle.result(PATIENCE)
        assert (await handle.status()).state == "gone"


async def test_none_with_retention_can_be_asked_for_later(app: App, look: Look) -> None:
    @app.task(retention=60)
    async def kept() -> None: ...

    async with app.worker(**FAST):
        handle = await kept.enqueue()
        await look.ends(handle.id, "completed")
        assert [*await asyncio.gather(handle.result(PATIENCE))] == [None]


async def test_a_wait_that_began_before_any_worker(app: App, look: Look) -> None:
    @app.task
    async def late() -> int:
        return 7

    handle = await late.enqueue()
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: _is_waited_for(look, handle))
    async with app.worker(**FAST):
        assert await waiter == 7


async def test_retries_are_waited_through(app: App, look: Look) -> None:
    tries = 0

    @app.task(retry_delay=0.05)
    async def third_time() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError("not yet")
        return tries

    async with app.worker(**FAST):
        assert await (await third_time.enqueue()).result(PATIENCE) == 3


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError("boom"), "ValueError: boom"), (SkipRetry("never"), "SkipRetry: never")]
)
async def test_a_failed_task_raises_with_its_last_error(app: App, look: Look, error: Exception, text: str) -> None:
    @app.task(max_retry=0)
    async def bad() -> int:
        raise error

    async with app.worker(**FAST):
        handle = await bad.enqueue()
        for _ in range(2):
            with pytest.raises(TaskFailed, match=text) as caught:
                await handle.result(PATIENCE)
            assert (caught.value.task_id, caught.value.error) == (handle.id, text)
            assert not isinstance(caught.value, TaskCancelled)


async def test_a_revoked_task_returns_none(app: App, look: Look) -> None:
    @app.task
    async def revoked() -> int:
        raise RevokeTask

    handle = await revoked.enqueue()
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: _is_waited_for(look, handle))
    async with app.worker(**FAST):
        assert await waiter is None


async def test_a_task_that_expires_unrun_has_failed(app: App, look: Look) -> None:
    @app.task
    async def stale() -> None: ...

    handle = await stale.using(expires=0.2).enqueue()
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: _is_waited_for(look, handle))
    expires_at = int((await look.fields(handle.id))["expires_at"])

    async def is_over() -> bool:
        return await look.now_ms() > expires_at

    await until(is_over)
    async with app.worker(**FAST):
        with pytest.raises(TaskFailed, match="expired"):
            await waiter


async def test_a_timeout_leaves_the_task_alone(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def slow() -> int:
        await go.wait()
        return 1

    async with app.worker(**FAST):
        handle = await slow.enqueue()
        with pytest.raises(TimeoutError, match="it goes on"):
            await handle.result(timeout=0.1)
        go.set()
        assert await handle.result(PATIENCE) == 1


async def test_an_unknown_id_is_gone(app: App, look: Look) -> None:
    with pytest.raises(ResultGone):
        await app.handle("nobody").result(PATIENCE)


async def test_whoever_is_refused_can_wait_for_the_one_that_is_there(app: App, look: Look) -> None:
    @app.task(unique_for=60)
    async def once() -> int:
        return 7

    first = await once.enqueue()
    twin = await once.enqueue()
    assert (twin.created, twin.id) == (False, first.id)
    async with app.worker(**FAST):
        assert await twin.result(PATIENCE) == 7


async def test_synchronous_code_waits_too(app: App, look: Look) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    async with app.worker(**FAST):
        handle = await asyncio.to_thread(double.enqueue_sync, 4)
        assert await asyncio.to_thread(handle.result_sync, PATIENCE) == 8
        assert (await asyncio.to_thread(handle.status_sync)).state == "completed"
    await asyncio.to_thread(app.blocking, app.close())  # what that loop opened, its subscription too


@VALKEY_ONLY
async def test_waiting_costs_no_commands(app: App, look: Look) -> None:
    @app.task
    async def never() -> None: ...

    others = await _listeners(look)
    handles = [await never.enqueue() for _ in range(50)]
    waiters = [asyncio.create_task(handle.result()) for handle in handles]
    await until(lambda: _is_waited_for(look, handles[-1]))
    before = await _commands(look)
    await pause(2.0, proves="nobody who waits asks again and again")
    assert await _commands(look) - before <= 3, "the two INFO calls, and one look whether a Go server has started"
    assert len(await _listeners(look) - others) == 1
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_what_is_awaited_before_any_worker_is_alive_is_kept_as_usual(app: App, look: Look) -> None:
    """A Go server might be the first that serves the queue, and would keep nothing: the task says so, to Go."""

    @app.task
    async def same(value: str | None) -> str | None:
        return value

    handles = [await same.enqueue(value) for value in (None, "r")]
    waiting = [asyncio.create_task(handle.result(PATIENCE)) for handle in handles]
    for handle in handles:
        await until(lambda handle=handle: _is_waited_for(look, handle))
        assert (await look.message(handle.id)).retention == 60
    async with app.worker(**FAST):
        assert await asyncio.gather(*waiting) == [None, "r"]
    assert await look.state(handles[0].id) == "gone"
    assert (await look.message(handles[1].id)).retention == 600


async def test_two_hundred_wait_at_once_on_one_connection(app: App, look: Look) -> None:
    @app.task
    async def echo(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @app.task
    async def mute(n: int) -> None:
        await asyncio.sleep(0.01)

    others = await _listeners(look)
    handles = [await (echo if n % 2 else mute).enqueue(n) for n in range(200)]
    waiters = [asyncio.create_task(handle.result(PATIENCE)) for handle in handles]
    await until(lambda: _is_waited_for(look, handles[-1]))
    async with app.worker(**FAST, concurrency=50):
        assert await asyncio.gather(*waiters) == [n if n % 2 else None for n in range(200)]
        assert len(await _listeners(look) - others) == 1


async def test_a_waiter_is_woken_at_once(app: App, look: Look) -> None:
    ended = 0.0
    go = asyncio.Event()

    @app.task
    async def short() -> int:
        nonlocal ended
        await go.wait()
        ended = time.monotonic()
        return 1

    delays: list[float] = []
    async with app.worker(**FAST):
        for _ in range(5):
            go.clear()
            handle = await short.enqueue()
            waiter = asyncio.create_task(handle.result(PATIENCE))
            await until(lambda: _is_waited_for(look, handle))  # noqa: B023 - awaited at once
            go.set()
            await waiter
            delays.append(time.monotonic() - ended)
    assert min(delays) < task_listener.LOOK / 10, delays


async def test_a_broken_subscription_is_made_again_and_looked_after(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def held() -> int:
        await go.wait()
        return 5

    async with app.worker(**FAST):
        handle = await held.enqueue()
        waiter = asyncio.create_task(handle.result(PATIENCE))
        await until(lambda: _is_waited_for(look, handle))
        assert await look.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
        go.set()
        assert await waiter == 5


async def test_what_a_go_worker_ends_is_found_by_looking(app: App, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_listener, "LOOK", 0.3)
    await look.push_like_go(go_message("go:task"))
    handle = app.handle("from-go", queue="default")
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: _is_waited_for(look, handle))
    await look.client.lrem(keys.pending("default"), 0, "from-go")
    await look.client.zadd(keys.completed("default"), {"from-go": int(time.time()) + 60})
    await look.client.hset(look.task("from-go"), mapping={"state": "completed", "result": '{"a":1}'})
    assert await waiter == {"a": 1}
    await look.push_like_go(go_message("go:task", task_id="second"))
    waiter = asyncio.create_task(app.handle("second", queue="default").result(PATIENCE))
    await until(lambda: _is_waited_for(look, app.handle("second", queue="default")))
    await look.client.lrem(keys.pending("default"), 0, "second")
    await look.client.delete(look.task("second"))
    with pytest.raises(ResultGone):
        await waiter


async def test_closing_the_app_ends_every_wait(app: App, look: Look) -> None:
    @app.task
    async def never() -> None: ...

    handle = await never.enqueue()
    waiter = asyncio.create_task(handle.result(PATIENCE))
    await until(lambda: _is_waited_for(look, handle))
    await app.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await waiter


def test_a_handle_is_a_plain_value() -> None:
    app = App("redis://127.0.0.1:1/0")
    other: Handle[object] = Handle("x", "q", "", "unknown")
    one = app.handle("x", queue="q")
    assert one == other
    assert hash(one) == hash(other)
    assert "desk" not in repr(one)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(ConfigError, match=r"app\.handle"):
        asyncio.run(other.result())


async def _is_waited_for(look: Look, handle: Handle[Any]) -> bool:
    return bool(await look.of(handle.queue).client.hexists(look.of(handle.queue).task(handle.id), "waited"))


async def _commands(look: Look) -> int:
    return int((await look.client.info("stats"))["total_commands_processed"])


async def _listeners(look: Look) -> set[bytes]:
    """Connections that listen for results; one of an earlier test may still linger."""
    return set(await look.client.pubsub_channels("asynq:ends:*"))


@pytest.mark.parametrize("kind", ["typed", "large", "failed"])
async def test_what_was_waited_for_from_the_beginning_is_whole_although_it_is_told_in_brief(
    app: App, look: Look, kind: str
) -> None:
    """The message that tells an end has neither the type, nor a large result, nor an error."""

    @app.task(name="typed")
    async def typed() -> Sum:
        return Sum(3, [1, 2])

    @app.task(name="large")
    async def large() -> str:
        return "x" * 100_000

    @app.task(name="failed")
    async def failed() -> None:
        raise SkipRetry("no paper")

    handle = await app.enqueue(kind)
    waiter = asyncio.create_task(app.handle(handle.id).result(PATIENCE))
    await until(lambda: look.client.hexists(look.task(handle.id), "waited"))
    async with app.worker(**FAST):
        if kind == "failed":
            with pytest.raises(TaskFailed, match="no paper"):
                await waiter
        else:
            assert await waiter == (Sum(3, [1, 2]) if kind == "typed" else "x" * 100_000)


async def test_a_handle_finds_its_task_in_whatever_queue_it_is(app: App, look: Look) -> None:
    @app.task(name="far", queue="far")
    async def far() -> int:
        return 7

    sent = await far.enqueue()
    handle = app.handle(sent.id)
    assert handle.queue == ""
    assert (await handle.status()).state == "pending"
    async with app.worker("far", scheduler=False):
        assert await handle.result(PATIENCE) == 7
    second = await far.using(task_id="second").enqueue()
    assert await app.cancel(second.id)
    await app.enqueue("t", queue="other", task_id="second")
    with pytest.raises(ConfigError, match="queue: got None, expected one of "):
        await app.handle("second").status()
    assert (await app.handle("nobody").status()).state == "gone"


async def test_result_sync_in_async_code_raises_at_once(app: App) -> None:
    handle = await app.enqueue("t")
    with pytest.raises(ConfigError, match=r"await handle\.result"):
        handle.result_sync()
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(handle.result_sync, 0.01)
