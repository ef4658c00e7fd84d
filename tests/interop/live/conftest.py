"""Live Go: `make interop` runs these tests. They need a Go toolchain and, the first time, its module registry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.interop.live.peer import build


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("VEREDUS_TEST_GO"):
        pytest.skip("make interop runs it, with live Go")
    if shutil.which("go") is None:
        pytest.skip("LIVE GO IS NOT TESTED: no Go toolchain is installed here")
    return build(tmp_path_factory.mktemp("go"))
