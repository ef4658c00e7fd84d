"""Live Go: `make interop` runs these tests. They need a Go toolchain and, the first time, its module registry."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.live.peer import RELEASES, Release, build


@pytest.fixture(scope="session")
def go() -> None:
    """For what needs Go, whichever release of Asynq it is."""
    if not os.environ.get("VEREDUS_TEST_GO"):
        pytest.skip("make interop runs it, with live Go")
    if shutil.which("go") is None:
        pytest.skip("LIVE GO IS NOT TESTED: no Go toolchain is installed here")


@pytest.fixture(scope="session", params=RELEASES, ids=lambda release: f"asynq-{release.version}")
def release(request: pytest.FixtureRequest, go: None) -> Release:
    """Every test runs beside each of these releases."""
    chosen: Release = request.param
    return chosen


@pytest.fixture(scope="session")
def built(go: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Path]:
    """Compiles the program with a release, once."""
    folder = tmp_path_factory.mktemp("go")
    return functools.cache(lambda release: build(folder, release))


@pytest.fixture(scope="session")
def program(release: Release, built: Callable[[Release], Path]) -> Path:
    return built(release)


@pytest.fixture(scope="session")
def newest_program(built: Callable[[Release], Path]) -> Path:
    """For tests to which the release does not matter."""
    return built(RELEASES[0])


@pytest.fixture(scope="session")
def programs(go: None, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The program with each release, for a fleet of both."""
    return [build(tmp_path_factory.mktemp("go"), release) for release in RELEASES]


@pytest.fixture
def server_time(redis_client: Any) -> Any:
    async def ask() -> float:
        seconds, micros = await redis_client.time()
        return float(seconds + micros / 1e6)

    return ask
