"""`app.batch`: a fan-out with a callback, started from outside of a handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.support.servers import VALKEY_ONLY
from veredus import App
from veredus.client.task_batch import pack_call, unpack_call
from veredus.errors import ConfigError, PayloadTooLarge

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


async def test_the_callback_runs_once_when_all_have_ended(app: App) -> None:
    ran: list[Any] = []

    @app.task(max_retry=0)
    async def resize(n: int) -> None:
        ran.append(n)
        if n == 3:
            raise ValueError("no such picture")

    @app.task
    async def report(title: str) -> str:
        ran.append(title)
        return f"{title}: {len(ran) - 1} pictures"

    async with app.worker(**SETTINGS):
        handle = await app.batch([resize.call(n) for n in range(20)], then=report.call("album")).enqueue()
        assert await handle.result(timeout=30) == "album: 20 pictures"
        assert await (await app.batch([resize.call(100)]).enqueue()).result(timeout=30) is None
    assert sorted(ran[:20]) == list(range(20))
    assert ran[20:] == ["album", 100]


def test_a_call_keeps_its_options(url: str) -> None:
    app = App(url)
    at = datetime(2090, 1, 2, tzinfo=UTC)
    options: dict[str, Any] = {"queue": "other", "max_retry": 2, "at": at, "headers": {"a": "b"}, "timeout": 5.0}
    for call in (app.call("t", {"n": 1}, **options), app.call("t", b"\xff\x00"), app.call("t")):
        assert unpack_call(pack_call(call)) == call
    assert unpack_call(pack_call(app.call("t", delay=timedelta(seconds=3)))).options.delay == 3


async def test_what_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="calls: got 7"):
        app.batch([7])  # type: ignore[list-item]
    with pytest.raises(PayloadTooLarge):
        await app.batch([app.call("t", b"x" * 1000) for _ in range(1000)]).enqueue()
