"""The queue that the script tests work on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.queue import Queue
from veredus.store.store import Store


@pytest.fixture
def q(store: Store, redis_client: Any) -> Queue:
    return Queue(store.redis, redis_client)
