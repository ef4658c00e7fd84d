"""The previous version, and a crew of both on a server of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import RealServer
from tests.upgrade.crew import Crew
from tests.upgrade.previous import NoHistory, install


@pytest.fixture(scope="session")
def previous(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the previous version is installed: kept from run to run in pytest's cache, if there is one."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    try:
        return install(cache.mkdir("previous") if cache else tmp_path_factory.mktemp("previous"))
    except NoHistory as exc:
        pytest.skip(str(exc))


@pytest.fixture
def crew(previous: Path, new_server: Callable[..., RealServer], tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(new_server(), tmp_path, previous)
    yield crew
    crew.close()
