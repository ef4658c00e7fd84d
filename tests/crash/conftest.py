"""Fixtures of the crash tests: a durable server that may be killed, and a fleet of workers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.fleet import Fleet
from tests.support.servers import RealServer, free_port


@pytest.fixture
def durable(new_server: Callable[..., RealServer]) -> RealServer:
    """A server of the test's own that keeps what it has, as in production, and listens on a port as well."""
    return new_server("--appendonly", "yes", "--appendfsync", "everysec", port=free_port())


@pytest.fixture
def fleet(durable: RealServer, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(durable, tmp_path)
    yield fleet
    fleet.close()
