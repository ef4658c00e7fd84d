"""Live Go: `make interop` runs these tests. They need a Go toolchain and, the first time, its module registry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.interop.live.peer import RELEASES, Release, build


@pytest.fixture(scope="session", params=RELEASES, ids=lambda release: f"asynq-{release.version}")
def release(request: pytest.FixtureRequest) -> Release:
    """Every test runs beside each of these releases."""
    if not os.environ.get("VEREDUS_TEST_GO"):
        pytest.skip("make interop runs it, with live Go")
    if shutil.which("go") is None:
        pytest.skip("LIVE GO IS NOT TESTED: no Go toolchain is installed here")
    chosen: Release = request.param
    return chosen


@pytest.fixture(scope="session")
def program(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go"), release)


@pytest.fixture
def server_time(redis_client: Any) -> Any:
    async def ask() -> float:
        seconds, micros = await redis_client.time()
        return float(seconds + micros / 1e6)

    return ask
