"""The log that the tests work on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.outbox.support import Log
from veredus.store.store import Store


@pytest.fixture
def log(store: Store, redis_client: Any) -> Log:
    return Log(store, redis_client)
