"""Durable handlers of clients' requests: answered once, at their end; what steps send is sent once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.test_worker_requests import _log, _request, _session, _until
from tests.integration.support import FAST
from veredus import App, current
from veredus.errors import ConfigError
from veredus.store.store import Store

SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


async def test_ruling_19_a_notify_in_a_step_is_sent_once_and_later_ones_are_not_lost(app: App, gw_store: Store) -> None:
    """The handler begins again twice: steps that are kept send nothing then. What comes after them must not be taken
    for what they sent."""
    attempts: list[int] = []

    async def step(name: str) -> None:
        for part in (1, 2):
            await current().client.notify({"step": name, "part": part})
        if name == "b" and len(attempts) == 1:
            raise RuntimeError("after what it sent")

    @app.action("work", max_retry=5)
    async def work() -> str:
        attempts.append(1)
        await current().step(step, "a", name="a")
        await current().client.notify("between")
        await current().step(step, "b", name="b")
        await current().sleep("nap", 0.01)
        await current().client.notify("at the end")
        return "done"

    sid = await _session(gw_store)
    async with app.worker(**SETTINGS):
        await _request(app, gw_store, sid, 1, "work")
        messages = await _until(gw_store, sid, 1)
    bodies = [message.body for message in messages]
    assert bodies == [
        b'{"step":"a","part":1}',
        b'{"step":"a","part":2}',
        b'"between"',
        b'{"step":"b","part":1}',
        b'{"step":"b","part":2}',
        b'"at the end"',
        b'"done"',
    ]
    assert len(attempts) == 3


async def test_ruling_19_before_and_after_the_response_are_refused_in_a_step(app: App, gw_store: Store) -> None:
    refused: list[ConfigError] = []

    async def step(when: str) -> None:
        with pytest.raises(ConfigError) as raised:
            await current().client.notify("x", when=when)
        refused.append(raised.value)

    @app.action("work", max_retry=5)
    async def work() -> str:
        for when in ("before", "after"):
            await current().step(step, when)
        return "done"

    sid = await _session(gw_store)
    async with app.worker(**SETTINGS):
        await _request(app, gw_store, sid, 1, "work")
        await _until(gw_store, sid, 1)
    assert [(one.field, one.value) for one in refused] == [("when", "before"), ("when", "after")]
    assert "now, inside a step" in str(refused[0])


async def test_ruling_07_a_request_is_not_answered_when_its_handler_leaves_to_wait(app: App, gw_store: Store) -> None:
    left = asyncio.Event()

    @app.action("work", max_retry=5)
    async def work() -> Any:
        try:
            return await current().wait_for("approved")
        finally:
            left.set()

    sid = await _session(gw_store)
    async with app.worker(**SETTINGS):
        handle = await _request(app, gw_store, sid, 1, "work")
        await left.wait()
        assert await _log(gw_store, sid) == []
        await app.emit("approved", "yes")
        [response] = await _until(gw_store, sid, 1)
        assert response.body == b'"yes"'
        assert await handle.result(timeout=20) == "yes"
    assert len(await _log(gw_store, sid)) == 1
