"""Go's inspector changes tasks that only we know the reason of, one by one and beside our verbs, while we work."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.crash.fleet import seeded
from tests.integration.support import FAST, Look
from tests.interop.live.peer import GoError, Release, go_peer
from tests.interop.live.python_side import PythonSide, same_listing
from tests.interop.live.rows import key, locks
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Limit, ResultGone, VeredusError, current

pytestmark = VALKEY_ONLY
KEYS = ("order_key", "limit_key")


def per_key(url: str) -> PythonSide:
    side = PythonSide(url)
    side.app.limit("shared", Limit(concurrency=1, per="key"))
    return side


async def _scheduled(client: Any, number: int) -> bool:
    return bool(await client.zcard(key("scheduled")) == number)


async def test_go_replaces_the_payloads_of_tasks_that_wait_for_a_key(
    newest_program: Path, url: str, redis_client: Any
) -> None:
    side, new = per_key(url), base64.b64encode(b"new").decode()
    async with side.app as app, go_peer(newest_program, url) as peer, app.worker("shared", **FAST):
        side.may_end.clear()
        sent = {
            name: [await app.enqueue("py:work", b"old", queue="shared", **{name: name}) for _ in range(3)]  # type: ignore[arg-type]
            for name in KEYS
        }
        await until(lambda: _scheduled(redis_client, 4))
        for name in KEYS:
            for handle in sent[name][1:]:
                await peer.do("update", queue="shared", id=handle.id, payload=new)
        side.may_end.set()
        await until(lambda: len(side.ran) == 6)
    payloads = {job.id: job.payload for job in side.ran}
    for name in KEYS:
        assert [payloads[handle.id] for handle in sent[name]] == [b"old", b"new", b"new"]
    assert await check_invariant(redis_client) == []


async def test_go_archives_one_in_the_middle_of_an_order_and_runs_another_out_of_turn(
    program: Path, url: str, redis_client: Any
) -> None:
    side = PythonSide(url)
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        side.may_end.clear()
        sent = [(await app.enqueue("py:work", {}, queue="shared", order_key="k")).id for _ in range(5)]
        await until(lambda: side.began)
        await peer.do("archive", queue="shared", id=sent[2])
        await peer.do("run", queue="shared", id=sent[3])
        side.may_end.set()
        await until(lambda: len(side.ran) == 4)
        await peer.do("run", queue="shared", id=sent[2])
        await until(lambda: len(side.ran) == 5)
        assert [sent.index(job.id) for job in side.ran] == [0, 1, 3, 4, 2]
        await until(lambda: _is_gone(redis_client, key("lanes")))
    assert await check_invariant(redis_client) == []


async def _is_gone(client: Any, name: str) -> bool:
    return not await client.exists(name)


async def test_thousands_that_wait_for_keys_are_run_by_go_at_once_and_their_order_holds(
    newest_program: Path, url: str, redis_client: Any
) -> None:
    """Each is put back until its turn comes."""
    side = PythonSide(url)
    names = [f"key {number}" for number in range(10)]
    async with side.app as app, go_peer(newest_program, url) as peer:
        calls = [
            app.call("py:work", str(number).encode(), queue="shared", order_key=name)
            for number in range(250)
            for name in names
        ]
        lanes = dict(zip([handle.id for handle in await app.enqueue_many(calls)], names * 250, strict=True))
        assert await peer.do("run_all", queue="shared", state="scheduled") == 2490
        async with app.worker("shared", concurrency=50, **FAST):
            await until(lambda: len(side.ran) == 2500, seconds=60)
            await until(lambda: _is_gone(redis_client, key("lanes")))
    for name in names:
        assert [int(job.payload) for job in side.ran if lanes[job.id] == name] == list(range(250))
    assert await check_invariant(redis_client) == []


async def test_what_we_move_to_a_queue_of_go_runs_there(program: Path, url: str, redis_client: Any) -> None:
    """The unique lock, the retention and the due time go with it."""
    side, look = PythonSide(url), Look(redis_client, "for-go")
    async with side.app as app, go_peer(program, url) as peer:
        (kept,) = await peer.enqueue("py:work", b"{}", queue="shared", unique_ms=60_000, retention_ms=60_000)
        (later,) = await peer.enqueue("py:work", b"{}", queue="shared", process_in_ms=3_600_000)
        for sent in (kept, later):
            await app.inspector().move("shared", sent["id"], "for-go")
        for state in ("pending", "scheduled"):
            assert len(await same_listing(app, peer, "for-go", state)) == 1
        (lock,) = await locks(redis_client)
        assert lock.startswith(b"asynq:{for-go}:unique:")
        await peer.do("run", queue="for-go", id=later["id"])
        await peer.serve("py:work", queue="for-go")
        await look.ends(kept["id"], "completed")
        await look.ends(later["id"], "gone")
        assert await locks(redis_client) == []
    assert await check_invariant(redis_client) == []


async def test_go_archives_runs_and_deletes_a_parent_that_waits_for_its_children(
    program: Path, url: str, redis_client: Any
) -> None:
    app, ran = App(url), list[str]()

    @app.task(name="child", queue="shared")
    async def child(event: str) -> str:
        ran.append(event)
        await current().wait_for(event)
        return event

    @app.task(name="parent", queue="shared")
    async def parent(name: str) -> list[str]:
        return await current().gather("children", [child.call(f"{name}:{number}") for number in range(3)])

    async def waiting(number: int) -> None:
        await until(lambda: _scheduled(redis_client, number))

    async with app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        handle = await parent.enqueue("one")
        await waiting(4)
        await peer.do("cancel", id=handle.id)  # nobody runs it
        await peer.do("archive", queue="shared", id=handle.id)
        for event in set(ran):
            await app.emit(event)
        await waiting(0)
        await peer.do("run", queue="shared", id=handle.id)
        assert sorted(await handle.result(timeout=20)) == sorted(set(ran))
        assert len(ran) == 6, "each child began again once, after its event"
        ran.clear()
        handle = await parent.enqueue("two")
        await waiting(4)
        result = asyncio.ensure_future(handle.result(timeout=30))
        await until(lambda: redis_client.hexists(key(f"t:{handle.id}"), "waited"))
        await peer.do("delete", queue="shared", id=handle.id)
        with pytest.raises(ResultGone):
            await result
        for event in set(ran):
            await app.emit(event)
        await waiting(0)
    assert await check_invariant(redis_client) == []


async def test_go_deletes_the_queue_again_and_again_while_we_send_and_work(
    program: Path, url: str, redis_client: Any
) -> None:
    """It refuses while a task runs. What is sent after the last time runs, with whatever key."""
    side = per_key(url)
    options: list[dict[str, Any]] = [{name: "k"} for name in KEYS] + [{}, {"delay": 0.2}]
    async with side.app as app, go_peer(program, url) as peer, app.worker("shared", **FAST):

        async def send(payload: bytes) -> None:
            await app.enqueue_many(
                [app.call("py:work", payload, queue="shared", **given) for given in options for _ in range(5)]
            )

        for _ in range(15):
            await send(b"deleted or not")
            with contextlib.suppress(GoError):
                await peer.do("delete_queue", queue="shared", force=True)
        await send(b"last")
        await until(lambda: sum(job.payload == b"last" for job in side.ran) == 20)
    assert await check_invariant(redis_client) == []


@pytest.mark.timeout(120)
async def test_verbs_of_both_inspectors_on_the_same_tasks_at_once_leave_nothing_behind(
    program: Path, url: str, redis_client: Any, release: Release
) -> None:
    side, rng = PythonSide(url, retry_delay=0.1), seeded()
    ways: list[dict[str, Any]] = [
        {}, {"delay": 0.3}, {"unique_for": 60}, {"limit_key": "c"}, {"order_key": "a"},
        {"order_key": "b", "order_hold": True},
    ]  # fmt: skip
    async with side.app as app, go_peer(program, url) as peer, go_peer(program, url) as tool:
        app.limit("shared", Limit(concurrency=1, per="key"))
        inspector = app.inspector()
        await peer.serve("py:work", queue="shared", retry_ms=100)

        async def meddle(task_id: str, by_go: bool) -> None:
            for _ in range(4):
                verb = rng.choice(["run", "archive", "delete", "cancel"])
                with contextlib.suppress(GoError, VeredusError):
                    if by_go:
                        await tool.do(verb, queue="shared", id=task_id)
                    else:
                        await getattr(inspector, verb)("shared", task_id)
                await asyncio.sleep(rng.random() * 0.1)

        async with app.worker("shared", **FAST):
            for _ in range(3):
                payloads = [{"behave": rng.choice(["wait", "fail", ""]), "ms": 300, "n": n} for n in range(40)]
                calls = [
                    app.call("py:work", payload, queue="shared", max_retry=rng.choice([0, 3]), **rng.choice(ways))
                    for payload in payloads
                ]
                handles = await app.enqueue_many(calls)
                await asyncio.gather(*[meddle(handle.id, by_go) for handle in handles for by_go in (True, False)])

            async def at_rest() -> bool:
                await inspector.delete_all("shared", "archived")
                names = [name.decode().partition("}:")[2] for name in await redis_client.keys(key("*"))]
                kept = ("pending", "active", "scheduled", "retry", "t:", "lane", "due", "unique:", "slots", "waiting")
                return not any(name.startswith(kept) for name in names)

            await until(at_rest)
    assert await check_invariant(redis_client) == []
