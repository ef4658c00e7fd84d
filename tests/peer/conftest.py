"""A scripted gateway per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypedDict

import pytest

from tests.peer.scripted import ScriptedGateway


class Quick(TypedDict):
    """Settings of `connect`."""

    backoff_base: float
    backoff_max: float


QUICK: Quick = {"backoff_base": 0.01, "backoff_max": 0.05}
"""A client that comes back at once."""


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
