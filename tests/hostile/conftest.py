"""An app on an empty server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.servers import RealServer
from veredus import App


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    async with App(valkey_server.url) as app:
        yield app
