"""An inspector on an empty server, and the queue it looks into."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.inspector.support import Bench
from veredus import App
from veredus.inspector.inspector import Inspector
from veredus.store.store import Store


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    yield app
    await app.close()


@pytest.fixture
def inspector(store: Store) -> Inspector:
    return Inspector(store.redis)


@pytest.fixture
def q(store: Store, redis_client: Any) -> Bench:
    return Bench(store.redis, redis_client)
