"""Options that only Veredus workers keep, sent while none is alive: told once, refused on request, never in the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Limit, QueueUnserved
from veredus.client import served_check
from veredus.store.tasks.live_processes import LiveProcess, LiveProcesses
from veredus.store.tasks.worker_records import WorkerRecords
from veredus.wire import keys
from veredus.wire.presence import ServerRecord

pytestmark = VALKEY_ONLY

GO = ServerRecord(
    host="h", pid=7, server_id="go", concurrency=10, queues={"for-go": 1}, strict_priority=False, status="active",
    started_at=1e9, active_worker_count=0,
)  # fmt: skip
BOUND = [{"order_key": "k"}, {"limit_key": "k"}, {"group": "g", "delay": 60}]


@pytest.fixture
async def go(store: Any, redis_client: Any) -> None:
    """The record of a Go server that serves `for-go`."""
    await WorkerRecords(store.redis).beat(GO, {})
    await redis_client.delete(keys.types(GO.host, GO.pid, GO.server_id))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_check, "FRESH", 0.0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that a client asked who is alive."""
    found: list[None] = []
    really = LiveProcesses.members

    async def members(self: LiveProcesses) -> list[LiveProcess]:
        found.append(None)
        return await really(self)

    monkeypatch.setattr(LiveProcesses, "members", members)
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "veredus.client"]


@pytest.mark.usefixtures("go")
@pytest.mark.parametrize("options", BOUND, ids=lambda options: next(iter(options)))
async def test_one_warning_for_a_queue_that_only_go_serves(
    url: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with App(url) as app:
        for _ in range(3):
            await app.enqueue("t", queue="for-go", **options)
        await app.enqueue_many([app.call("t", queue="for-go", **options)])
    (text,) = told(caplog)
    assert text.startswith(f"queue for-go: a task was sent with {next(iter(options))}, but no Veredus worker")
    assert "Go" in text
    assert 'App(unserved="refuse")' in text


@pytest.mark.usefixtures("go")
@pytest.mark.parametrize("options", BOUND, ids=lambda options: next(iter(options)))
async def test_such_a_task_is_refused_on_request(url: str, options: dict[str, Any], redis_client: Any) -> None:
    option = next(iter(options))
    async with App(url, unserved="refuse") as app:
        with pytest.raises(
            QueueUnserved, match=rf"queue 'for-go': a task with {option} was refused: .*worker"
        ) as caught:
            await app.enqueue("t", queue="for-go", task_id="x", **options)
        assert (caught.value.queue, caught.value.option) == ("for-go", option)
        with pytest.raises(QueueUnserved):
            await app.enqueue_many([app.call("t", queue="for-go", **options)])
        assert (await app.enqueue("t", queue="for-go")).created
    assert await redis_client.llen("asynq:{for-go}:pending") == 1


@pytest.mark.usefixtures("go")
async def test_nothing_is_said_if_that_is_asked_for_or_if_the_task_needs_nobody(
    url: str, caplog: pytest.LogCaptureFixture, looks: list[None]
) -> None:
    async with App(url, unserved="ignore") as app:
        await app.enqueue("t", queue="for-go", order_key="k")
    async with App(url) as app:
        await app.enqueue("t", queue="for-go", delay=60)
        await app.enqueue("t", queue="for-go")
    assert told(caplog) == []
    assert looks == [], "who is alive is asked only for tasks that need it"


@pytest.mark.parametrize("options", [*BOUND, {"group": "g"}], ids=str)
async def test_producers_may_start_before_the_workers(
    url: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """While nobody at all serves the queue, any task waits for a worker."""
    async with App(url) as app:
        await app.enqueue("t", queue="for-go", **options)
        assert told(caplog) == []
        async with app.worker("for-go", **FAST):
            await until(app.inspector().servers)
            await app.enqueue("t", queue="for-go", **(options if "group" not in options else {}))
    assert told(caplog) == []


@pytest.mark.usefixtures("go")
async def test_a_worker_of_another_queue_keeps_order_keys_but_no_limits(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url, unserved="refuse")

    @app.task(queue="for-go", limit=Limit(rate="5/s"))
    async def limited() -> None: ...

    async with app, app.worker("other", **FAST):
        await until(lambda: _lists(app, "other"))
        await app.enqueue("t", queue="for-go", order_key="k")
        with pytest.raises(QueueUnserved, match="limit_key"):
            await app.enqueue("t", queue="for-go", order_key="k", limit_key="k")
        with pytest.raises(QueueUnserved, match="a task with limit was refused"):
            await limited.enqueue()
        with pytest.raises(QueueUnserved, match="a task with limit was refused"):
            await limited.using(unique_for=60).enqueue()


@pytest.mark.usefixtures("go")
async def test_a_worker_that_is_restarted_is_no_reason_to_warn_one_that_stays_away_is(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(url) as app:
        async with app.worker("other", **FAST):
            await until(lambda: _lists(app, "other"))
            await app.enqueue("t", queue="for-go", order_key="k")
        await app.enqueue("t", queue="for-go", order_key="k")
        assert told(caplog) == []
        monkeypatch.setattr(served_check, "RESTART", 0.0)
        await app.enqueue("t", queue="for-go", order_key="k")
        assert len(told(caplog)) == 1
        async with app.worker("other", **FAST):
            await until(lambda: _lists(app, "other"))
            await app.enqueue("t", queue="for-go", order_key="k")
        await app.enqueue("t", queue="for-go", order_key="k")
        assert len(told(caplog)) == 2, "it is another outage"


async def test_a_group_that_no_live_worker_aggregates(url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App(url)

    @app.aggregate("digest:*", queue="mail")
    def digest(group: str, members: list[Any]) -> list[Any]:
        return []

    async with app, app.worker(["mail", "other"], **FAST):
        await until(lambda: _lists(app, "mail"))
        await app.enqueue("t", queue="mail", group="digest:7")
        assert told(caplog) == []
        await app.enqueue("t", queue="mail", group="elsewhere")
        await app.enqueue("t", queue="other", group="digest:7")
    first, second = told(caplog)
    assert first.startswith(
        "queue mail: a task was sent with group, but no worker of this queue is alive that aggregates"
    )
    assert second.startswith("queue other: ")


@pytest.mark.usefixtures("go")
async def test_a_go_server_may_aggregate_any_group(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with App(url, unserved="refuse") as app:
        assert (await app.enqueue("t", queue="for-go", group="g")).state == "aggregating"


async def test_it_is_asked_once_within_some_seconds(
    url: str, looks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_check, "FRESH", 60.0)
    async with App(url) as app:
        await asyncio.gather(*[app.enqueue("t", queue="for-go", order_key="k") for _ in range(50)])
        await app.enqueue_many([app.call("t", queue="for-go", order_key=f"k{n}") for n in range(50)])
    assert len(looks) == 1


async def _lists(app: App, queue: str) -> bool:
    return any(queue in server.queues for server in await app.inspector().servers())
