"""A data folder of its own for every test, whose server and keeper are gone when the test is over."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until_sync
from veredus import embedded
from veredus.embedded import locks
from veredus.embedded.folder import Folder

VARIABLES = (
    "VEREDUS_EMBEDDED", "VEREDUS_EMBEDDED_LINGER", "VEREDUS_EMBEDDED_SERVER", "VEREDUS_DATA",
)  # fmt: skip


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> None:
    """kill -9, and wait until it is dead."""
    os.kill(pid, signal.SIGKILL)
    until_sync(lambda: not is_alive(pid))


def keeper_pid(data: Path) -> int:
    """The keeper writes its process id on every line of its log."""
    log = Folder.at(data).keeper_log
    until_sync(lambda: "keeping the server" in log.read_text())
    return int([line for line in log.read_text().splitlines() if "keeping the server" in line][-1].split()[2])


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder with a short path that does not exist yet."""
    base = Path(tempfile.mkdtemp(prefix="veredus-test-")).resolve()
    yield base / "data"
    clean_up(base / "data")
    shutil.rmtree(base)


def clean_up(folder: Path) -> None:
    """Leave no process behind, whatever the test did."""
    server = embedded.status(folder)
    if server is not None:
        try:
            embedded.stop(folder)
        except Exception:
            kill(server.pid)
            raise
    until_sync(lambda: not locks.is_held(Folder.at(folder).keeper_lock))
