"""The queue that the group tests work on, an app on an empty server, and a look behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.groups.kitchen import Kitchen
from tests.groups.support import GroupQueue
from tests.integration.support import Look
from tests.support.keyspace import check_invariant
from veredus import App
from veredus.model import grouping
from veredus.store.store import Store


@pytest.fixture
def q(store: Store, redis_client: Any) -> GroupQueue:
    return GroupQueue(store.redis, redis_client)


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
def kitchen(app: App, quick_back_off: None) -> Kitchen:
    return Kitchen(app)


@pytest.fixture
def quick_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed group is tried again within a test's patience."""
    monkeypatch.setattr(grouping, "MAX_BACKOFF", 0.3)
