"""Messages that Go may write with any 64-bit number in any field: they run, they are shown, and leases are kept."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.foreign.readers import ask_commands, ask_dashboard, ask_inspector
from tests.foreign.support import FAST, Notes
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys
from veredus.wire.schema import MESSAGES, message_class

LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1}
NUMBERS = {name: LIMITS[kind] for name, (_, kind) in MESSAGES["TaskMessage"].items() if kind in LIMITS}
SCORES = ("inf", "-inf", "0", "-1", "0.5", "1e300", "9223372036854775807", "-9223372036854775808")


def _extremes() -> dict[str, bytes]:
    """By id: one message for each field and number, and one with all fields at each extreme."""
    made: dict[str, bytes] = {}
    for n, (name, most) in enumerate(itertools.product(NUMBERS, (1, 0))):
        del n, most
        top = NUMBERS[name]
        for value in (top, -top - 1, -1, 0, 1, top - 1):
            made[f"{name}={value}"] = _message(f"{name}={value}", {name: value})
    for which in ("most", "least"):
        values = {name: top if which == "most" else -top - 1 for name, top in NUMBERS.items()}
        made[f"all={which}"] = _message(f"all={which}", values)
    return made


def _message(task_id: str, values: dict[str, int]) -> bytes:
    fields = {"type": "note", "payload": b"{}", "id": task_id, "queue": "default", "retry": 1, **values}
    data: bytes = message_class("TaskMessage")(**fields).SerializeToString()
    return data


@pytest.mark.parametrize("outcome", ["done", "fails"])
def test_a_worker_runs_messages_with_extreme_numbers(
    valkey_server: RealServer, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their handlers are at work during several heartbeats."""
    messages = _extremes()

    async def run() -> None:
        app, running, release = App(valkey_server.url), set[str](), asyncio.Event()

        @app.task(name="note")
        async def note() -> int:
            from veredus import current

            running.add(current().job.id)
            await release.wait()
            if outcome == "fails":
                raise ValueError("no")
            return 1

        with valkey_server.client() as client, Notes() as notes:
            client.sadd(keys.QUEUES, "default")
            for task_id, data in messages.items():
                client.hset(keys.task("default", task_id), mapping={"msg": data, "state": "pending"})
                client.lpush(keys.pending("default"), task_id)
            worker = app.worker(concurrency=200, **FAST)
            async with worker:
                long = {task_id for task_id in messages if not _is_over(task_id)}
                await until(lambda: running == long, what="all that have time")
                beaten = worker._heartbeater.beaten_at
                for _ in range(3):
                    await until(lambda: worker._heartbeater.beaten_at > beaten)  # noqa: B023 - awaited at once
                    beaten = worker._heartbeater.beaten_at
                await ask_inspector(app, ["default"])
                await ask_dashboard(app, ["default"])
                release.set()
                await until(lambda: not worker._in_flight.held())
                await ask_inspector(app, ["default"])
                assert worker.signs.restarts == {}
            assert [record.getMessage() for record in notes.records if "ended" in record.getMessage()] == []
            assert not client.llen(keys.active("default"))
        await app.close()

    asyncio.run(run())
    ask_commands(valkey_server.url, ["default"], monkeypatch)


def _is_over(task_id: str) -> bool:
    """Whether its time is over before it begins, as it would be in Go."""
    name, _, value = task_id.partition("=")
    if name == "all":
        return value == "least"
    return name in ("timeout", "deadline") and (int(value) < 0 or (name == "deadline" and int(value) == 1))


def test_scores_that_are_no_seconds(valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every sorted set: what is due by its score is run, the rest waits, and all of it can be shown."""

    async def run() -> None:
        app, ran = App(valkey_server.url), set[str]()

        @app.task(name="note")
        async def note() -> None:
            from veredus import current

            ran.add(current().job.id)

        due = {f"{state} {score}" for state in ("scheduled", "retry") for score in SCORES if float(score) <= 1}
        with valkey_server.client() as client:
            client.sadd(keys.QUEUES, "default")
            for state in ("scheduled", "retry", "archived", "completed", "lease"):
                for score in SCORES:
                    task_id = f"{state} {score}"
                    fields = {"msg": _message(task_id, {}), "state": "active" if state == "lease" else state}
                    client.hset(keys.task("default", task_id), mapping=fields)
                    client.zadd(keys.queue_prefix("default") + state, {task_id: score})
                    client.zadd(keys.due("default"), {task_id: score})
                    if state == "lease":
                        client.lpush(keys.active("default"), task_id)
        await ask_inspector(app, ["default"])
        await ask_dashboard(app, ["default"])
        worker = app.worker(**FAST)
        async with worker:
            await until(lambda: due <= ran, what="what is due")
            await app.enqueue("note", {})
            await ask_inspector(app, ["default"])
            assert worker.signs.restarts == {}
        await app.close()

    asyncio.run(run())
    ask_commands(valkey_server.url, ["default"], monkeypatch)
