"""Each set of rows runs once for all tests, and for all test processes: the first that needs it does it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.evidence import gather
from tests.support.leaks import SharedServers, nothing_left_behind

Evidences = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def evidences(tmp_path_factory: pytest.TempPathFactory, shared_servers: SharedServers) -> Evidences:
    """What there is to see of a set of rows (`together` or `alone`) in a mode."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if base.name.startswith("popen-") else base  # of one test process, of all
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def get(name: str, mode: str) -> dict[str, Any]:
        if (name, mode) not in known:
            known[name, mode] = _once(folder / f"handlers-{name}-{mode}".replace(" ", "-"), name, mode, shared_servers)
        return known[name, mode]

    return get


def _once(folder: Path, name: str, mode: str, servers: SharedServers) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    found = folder / "found.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            with nothing_left_behind(f"rows {name}, {mode}", servers):
                written = json.dumps(gather(name, mode, folder))
            found.write_text(written)
    evidence: dict[str, Any] = json.loads(found.read_text())
    return evidence
