"""The stream: everything at first, then what changed; shared by all who watch, and gone when nobody does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import veredus.dashboard.live
from tests.dashboard.conftest import TOKEN
from tests.support.waiting import PATIENCE
from veredus import App, ConfigError
from veredus.dashboard import asgi
from veredus.dashboard.dashboard import READINGS
from veredus.dashboard.live import Live
from veredus.dashboard.read_routes import Reading

HEADERS = {"authorization": f"Bearer {TOKEN}"}


class Stream:
    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self, of: str, seconds: float = 10.0) -> Any:
        """The next news of one address."""
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                if line.startswith("data: "):
                    told = json.loads(line.removeprefix("data: "))
                    if told["of"] == of:
                        return told
        raise AssertionError("the stream ended")


@asynccontextmanager
async def stream(address: str, *topics: str) -> AsyncIterator[Stream]:
    async with (
        httpx.AsyncClient(headers=HEADERS, timeout=20) as client,
        client.stream("GET", f"{address}api/live", params=[("of", topic) for topic in topics]) as answer,
    ):
        assert answer.status_code == 200
        yield Stream(answer)


async def test_what_changes_is_told_without_asking(app: App, served: str) -> None:
    await app.enqueue("t", {"n": 1}, queue="mail", delay=600)
    tasks = "tasks?queue=mail&state=scheduled"
    async with stream(served, "overview", tasks) as live:
        assert live.answer.headers["content-type"].startswith("text/event-stream")
        assert live.answer.headers["cache-control"] == "no-store"
        assert (await live.next("overview"))["value"]["aggregate"]["scheduled"] == 1
        assert len((await live.next(tasks))["value"]["tasks"]) == 1
        await app.enqueue("t", {"n": 2}, queue="mail", delay=600)
        while len((await live.next(tasks))["value"]["tasks"]) != 2:
            pass


async def test_what_does_not_change_is_told_once(app: App, served: str) -> None:
    handle = await app.enqueue("t", queue="mail", delay=600)
    topic = f"task?queue=mail&id={handle.id}"
    async with stream(served, topic, "jobs") as live:
        assert (await live.next(topic))["value"]["state"] == "scheduled"
        try:
            told = await live.next(topic, 0.4)  # eight rounds
        except TimeoutError:
            told = None
        assert told is None


async def test_an_error_is_told_like_a_value_and_may_pass(app: App, served: str) -> None:
    topic = "queue?queue=later"
    async with stream(served, topic) as live:
        told = await live.next(topic)
        assert (told["error"]["status"], told["error"]["error"]) == (404, "queue_not_found")
        await app.enqueue("t", queue="later")
        assert (await live.next(topic))["value"]["pending"] == 1


async def test_many_who_watch_cost_one_look(app: App) -> None:
    looks = 0

    async def count(opened: Any, form: Any) -> int:
        nonlocal looks
        looks += 1
        return looks

    dashboard = asgi(app, token=TOKEN, refresh=0.1)
    live = Live(dashboard.backend, {**READINGS, "count": Reading(count, (), 1)})
    ended = 0

    async def watch() -> None:
        nonlocal ended
        async for line in live.stream(live.topics(["count"])):
            if line.startswith(b"data: ") and json.loads(line.removeprefix(b"data: "))["value"] >= 3:
                ended += 1
                return

    await asyncio.wait_for(asyncio.gather(*[watch() for _ in range(50)]), PATIENCE)
    assert ended == 50
    assert looks < 50
    assert live._topics == {} or all(topic.watchers for topic in live._topics.values())
    await dashboard.close()


async def test_only_so_many_streams_at_once_and_one_that_ends_makes_room(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(veredus.dashboard.live, "MOST_STREAMS", 2)
    dashboard = asgi(app, token=TOKEN)
    live = Live(dashboard.backend, READINGS)
    open_ones = [live.stream(live.topics(["jobs"])) for _ in range(2)]
    for one in open_ones:
        assert await anext(one) == b"retry: 1000\n\n"
    with pytest.raises(ConfigError, match="at most 2 streams"):
        live.topics(["jobs"])
    for one in open_ones:
        await one.aclose()
    another = live.stream(live.topics(["jobs"]))
    assert await anext(another)
    await another.aclose()
    await dashboard.close()


async def test_a_stream_without_news_sends_a_line_all_the_same(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else proxies would take it for dead."""
    monkeypatch.setattr(veredus.dashboard.live, "BEAT", 0.1)
    dashboard = asgi(app, token=TOKEN, refresh=0.05)
    live = Live(dashboard.backend, READINGS)
    stream = live.stream(live.topics(["jobs"]))
    async with asyncio.timeout(PATIENCE):
        lines = [await anext(stream) for _ in range(4)]
    assert lines[1].startswith(b"data: ")
    assert lines[2:] == [b": still here\n\n"] * 2
    await stream.aclose()
    await dashboard.close()


async def test_jobs_are_followed_live(app: App, served: str) -> None:
    await app.enqueue_many(app.call("t", {"n": n}, queue="mail", delay=600) for n in range(2000))
    async with stream(served, "jobs") as live, httpx.AsyncClient(headers=HEADERS) as client:
        assert (await live.next("jobs"))["value"]["jobs"] == []
        body = {"verb": "delete", "queue": "mail", "state": "scheduled"}
        job = (await client.post(f"{served}api/jobs/start", json=body)).json()
        while True:
            (seen,) = (await live.next("jobs"))["value"]["jobs"]
            assert seen["id"] == job["id"]
            if seen["status"] == "done":
                break
        assert seen["result"]["done"] == 2000
