"""What a fan-out costs the server: no call touches more than some hundred children, or more than some megabytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.durable.test_children import SETTINGS, declare
from tests.durable.test_waits import parked
from tests.integration.support import Look
from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.errors import TaskFailed
from veredus.store.connection.redis import ScriptCall, SingleServer
from veredus.store.connection.scripts import Script
from veredus.store.store import Store
from veredus.store.tasks.runs import MOST_BYTES, JoinRow
from veredus.wire import keys

pytestmark = VALKEY_ONLY

LARGE = MOST_BYTES // 3


class Call(NamedTuple):
    arguments: int
    """How many it sent."""
    bytes: int
    """How many it sent and received."""


Calls = dict[str, list[Call]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The scripts that were called one by one, and LPOP, by name; those of one round trip under `each `."""
    found: Calls = defaultdict(list)
    run, run_each, command = SingleServer.run, SingleServer.run_each, SingleServer.command

    async def noted_run(self: SingleServer, script: Script, names: Sequence[str], args: Sequence[Any]) -> Any:
        reply = await run(self, script, names, args)
        found[script.name].append(Call(len(args), _size(args) + _size(reply)))
        return reply

    async def noted_each(self: SingleServer, rows: Sequence[ScriptCall]) -> list[Any]:
        if rows:
            found[f"each {rows[0].script.name}"].append(Call(len(rows), 0))
        return await run_each(self, rows)

    async def noted_command(self: SingleServer, *args: Any, key: str) -> Any:
        reply = await command(self, *args, key=key)
        if args[0] == "LPOP":
            found["LPOP"].append(Call(len(reply or ()), _size(reply)))
        return reply

    monkeypatch.setattr(SingleServer, "run", noted_run)
    monkeypatch.setattr(SingleServer, "run_each", noted_each)
    monkeypatch.setattr(SingleServer, "command", noted_command)
    return found


def _size(values: Any) -> int:
    return sum(len(one) for one in values if isinstance(one, (bytes, str))) if isinstance(values, (list, tuple)) else 0


@pytest.mark.parametrize("queue", ["default", "other"])
async def test_no_call_of_a_large_fan_out_touches_more_than_some_hundred_children(
    app: App, look: Look, calls: Calls, queue: str
) -> None:
    double, _ = declare(app)

    @app.task
    async def parent() -> int:
        return sum(await current().gather("pages", [double.using(queue=queue).call(n) for n in range(1600)]))

    async with app.worker(["default", "other"], **{**SETTINGS, "concurrency": 50}):
        assert await (await parent.enqueue()).result(timeout=60) == 1599 * 1600
        await until(lambda: sum(one.arguments - 2 for one in calls["durable/forget"]) >= 1600)
    most = {name: max(one.arguments for one in each) for name, each in calls.items()}
    assert most["durable/spawn+task/enqueue"] <= 250 * 4 + 20
    assert most.get("LPOP", 0) <= 100
    assert most.get("durable/join", 0) <= 500 * 5 + 2
    assert ("durable/join" in calls) == (queue == "other"), "in one queue the end of a child tells its parent"
    assert most["durable/forget"] <= 100 + 2
    assert [one.arguments for one in calls["durable/outcomes"]] == [3, 3]
    assert len(calls["durable/spawn+task/enqueue"]) == 7


async def test_children_with_large_payloads_and_results_are_moved_in_several_calls(app: App, calls: Calls) -> None:
    @app.task
    async def same(text: str) -> str:
        return text

    @app.task
    async def parent(places: int) -> int:
        pages = [same.using(queue="other").call(f"{n}" + "x" * LARGE) for n in range(places)]
        found = [page async for page in current().gather_each("pages", pages)]
        assert [page[:2] for page in found] == [f"{n}x" for n in range(places)]
        return len(found)

    async with app.worker(["default", "other"], **SETTINGS):
        assert await (await parent.enqueue(9)).result(timeout=60) == 9
    for name in ("durable/spawn+task/enqueue", "durable/join", "durable/outcomes"):
        assert len(calls[name]) >= 3, name
        assert max(one.bytes for one in calls[name]) < MOST_BYTES + LARGE + 10_000, name


@pytest.mark.parametrize("queue", ["default", "other"])
async def test_children_that_return_nothing_are_not_read_again(app: App, calls: Calls, queue: str) -> None:
    @app.task
    async def nothing() -> None: ...

    @app.task
    async def parent() -> list[None]:
        return await current().gather("all", [nothing.using(queue=queue).call() for _ in range(30)])

    async with app.worker(["default", "other"], **SETTINGS):
        assert await (await parent.enqueue()).result(timeout=20) == [None] * 30
    assert "each result/await" not in calls


async def test_a_result_that_was_written_before_the_child_ended_is_read(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("p"), mapping={"run": "m", "state": "active", "g:g": '1 0 [["q", 1, false]]'})
    await q.client.hset(q.task("a"), mapping={"waited": "^q|p|m|g|0", "result": "7"})
    await q.complete(("a", "w:1", "", b"", 60, 0, b""))
    assert await q.client.keys("*:kids:*") == []
    [record] = await q.client.lrange(q.key("ended"), 0, -1)
    assert record.startswith(b"^q|p|m|g|0 completed "), "whoever takes it reads the child"


async def test_children_that_are_run_again_are_noted_in_one_round_trip(app: App, look: Look, calls: Calls) -> None:
    is_fixed: list[bool] = []

    @app.task(max_retry=0)
    async def child(n: int) -> int:
        if not is_fixed:
            raise ValueError("not yet")
        return n

    @app.task
    async def parent() -> list[int]:
        return await current().gather("all", [child.using(queue="other").call(n) for n in range(30)])

    other = look.of("other")

    async def all_failed() -> bool:
        return len(await other.scores("archived")) == 30

    async def all_are_noted() -> bool:
        return all(["waited" in await other.fields(name) for name in await other.pending()])

    async with app.worker("default", **SETTINGS), app.inspector() as inspector:
        handle = await parent.enqueue()
        async with app.worker("other", **SETTINGS):
            await until(all_failed)
            await until(lambda: calls["durable/join"])
            with pytest.raises(TaskFailed):
                await handle.result(timeout=20)
        is_fixed.append(True)
        calls.clear()
        await inspector.run("default", handle.id)
        await parked(look, handle.id)
        assert len(await other.pending()) == 30
        assert await all_are_noted()
        assert [one.arguments for one in calls["each result/await"]] == [30, 30]
        assert "result/await" not in calls
        async with app.worker("other", **SETTINGS):
            assert await handle.result(timeout=20) == list(range(30))


async def test_outcomes_are_counted_up_to_the_first_that_are_missing(app: App, look: Look, store: Store) -> None:
    """Of 100,000 children, most have no outcome yet: to read the lengths of all hashes each time would take longer than
    to store what has come."""
    key = keys.task("default", "a")
    fields = {"run": "m", "state": "active", "msg": b"", "g:pages": '100000 0 [["default", 100000, false]]'}
    await look.client.hset(key, mapping=fields)
    await look.client.config_resetstat()
    await store.runs.join("default", [JoinRow("a", "m", "pages", at, b"+") for at in (5, 70_000)])
    assert (await look.client.info("commandstats"))["cmdstat_hlen"]["calls"] == 1
    await look.client.delete(key, *await look.client.keys("*:kids:*"))


@pytest.mark.parametrize("damaged", ["waits", "scheduled", "kids:p:m:0:g"])
async def test_a_damaged_key_of_its_parent_does_not_keep_a_child_from_ending(q: Queue, damaged: str) -> None:
    """Its outcome takes the way through the list, as if the parent were in another queue."""
    await q.activate("a", "b")
    await q.client.hset(q.task("p"), mapping={"run": "m", "state": "active", "g:g": '2 0 [["q", 2, false]]'})
    await q.client.set(q.key(damaged), "damaged")
    for at, name in enumerate("ab"):
        await q.client.hset(q.task(name), "waited", f"^q|p|m|g|{at}")
    assert await q.complete("a", "b") == []
    assert len(await q.client.lrange(q.key("ended"), 0, -1)) == 2
    assert (await q.fields("b"))["state"] == "completed"
    await q.client.delete(q.key(damaged))


async def test_a_child_of_an_earlier_run_tells_the_run_of_now_nothing(q: Queue) -> None:
    await q.activate("a")
    await q.client.hset(q.task("p"), mapping={"run": "m", "state": "active", "g:g": '1 0 [["q", 1, false]]'})
    await q.client.hset(q.task("a"), "waited", "^q|p|another|g|0")
    await q.complete("a")
    assert await q.client.keys("*:kids:*") == []
    assert set(await q.fields("p")) == {"run", "state", "g:g"}


async def test_an_outcome_is_kept_in_the_step_that_ends_the_child(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.hset(q.task("p"), mapping={"run": "m", "state": "active", "g:pages\0002": '2 0 [["q", 2, false]]'})
    for at, name in enumerate("ab"):
        await q.client.hset(q.task(name), "waited", f"^q|p|m|pages%002|{at}")
    await q.complete(("a", "w:1", "", b"", 60, 1, b"7"))
    assert await q.client.hgetall(q.key("kids:p:m:0:pages\0002")) == {b"0": b"+r7"}
    assert "o:pages\0002" not in await q.fields("p")
    await q.complete(("b", "w:1", "", b"", 60, 0, b""))
    assert await q.client.hgetall(q.key("kids:p:m:0:pages\0002")) == {b"0": b"+r7", b"1": b"+"}
    assert (await q.fields("p"))["o:pages\0002"] == "+"
    assert not await q.client.exists(q.key("ended"))
