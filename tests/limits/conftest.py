"""The queue `q` of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.order.support import Bound, bound
from veredus.store.store import Store


@pytest.fixture
async def q(store: Store, redis_client: Any) -> AsyncIterator[Bound]:
    async with bound(store.redis, redis_client) as queue:
        yield queue
