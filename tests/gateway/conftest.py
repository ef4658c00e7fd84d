"""An app on an empty server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.servers import RealServer
from veredus import App
from veredus.store.store import Store, connect


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    async with App(valkey_server.url) as app:
        yield app


@pytest.fixture
async def gw_store(valkey_server: RealServer) -> AsyncIterator[Store]:
    """The store, beside the gateway's own."""
    store = Store(connect(valkey_server.url))
    yield store
    await store.close()
