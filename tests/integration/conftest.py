"""An app on an empty server, and a look behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import Look
from tests.support.keyspace import check_invariant
from tests.support.servers import RealServer
from veredus import App


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    yield app
    await app.close()
    app.close_sync()


@pytest.fixture
async def look(redis_client: Any) -> AsyncIterator[Look]:
    """The default queue. After the test, whatever is left in Redis must be sound."""
    yield Look(redis_client)
    assert await check_invariant(redis_client) == []


@pytest.fixture
def durable_server(new_server: Callable[..., RealServer]) -> Iterator[RealServer]:
    """A server of the test's own that has everything again after kill -9."""
    server = new_server("--appendonly", "yes", "--appendfsync", "always")
    yield server
    if Path(server.folder).exists() and not server.alive():
        server.start()
