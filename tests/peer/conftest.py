"""A scripted gateway per test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.peer.scripted import ScriptedGateway

QUICK = {"backoff_base": 0.01, "backoff_max": 0.05}


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    made = await ScriptedGateway().start()
    yield made
    await made.stop()


@pytest.fixture(params=["ws", "quic"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[ScriptedGateway]:
    made = await ScriptedGateway(request.param).start()
    yield made
    await made.stop()


async def until(reached: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < give_up, "it never came to that"
        await asyncio.sleep(0.005)
