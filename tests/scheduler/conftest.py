"""An app on an empty server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from veredus import App


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    yield app
    await app.close()
