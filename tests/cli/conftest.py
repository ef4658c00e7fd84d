"""A folder with an app in it, and the command run there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Command
from tests.support.processes import end
from tests.support.servers import RealServer

SHOP = """\
import asyncio, os, threading, time
from pathlib import Path
from veredus import App

app = App(result_ttl=60)
not_an_app = 5


def note(text):
    with open("notes", "a") as notes:
        notes.write(text + "\\n")


@app.task(name="quick")
async def quick(n: int) -> None:
    note(f"quick {n} {os.getpid()}")


@app.task(name="slow")
async def slow(seconds: float) -> None:
    note(f"begun {os.getpid()}")
    await asyncio.sleep(seconds)
    note("slow done")


@app.task(name="hang")
async def hang(busy: bool) -> None:
    note("hanging")
    while busy:
        pass
    threading.Event().wait()


@app.task(name="wait")
def wait() -> None:
    note("waits")
    while not Path("gate").exists():
        time.sleep(0.01)


HOARD = []


@app.task(name="fat")
async def fat(n: int) -> None:
    HOARD.append(bytearray(40_000_000))
    HOARD[-1][::4096] = b"x" * len(HOARD[-1][::4096])
    note(f"fat {n} {os.getpid()}")


@app.task(name="cpu", run_in="process")
def cpu(seconds: float) -> None:
    note("cpu begun")
    time.sleep(seconds)
    note("cpu done")
"""


class Shop:
    """Runs `veredus` in the folder, against one server."""

    def __init__(self, folder: Path, server: RealServer) -> None:
        self.folder, self.server = folder, server
        self.client = server.client()
        self._started: list[subprocess.Popen[str]] = []
        (folder / "shop.py").write_text(SHOP)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "REDIS" not in name and "VEREDUS" not in name}
        return {**kept, "VEREDUS_REDIS_URL": self.server.url, "COLUMNS": "200", **more}

    def run(self, *args: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "veredus", *args],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        """A worker in a session of its own; what it says is in `log`."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "veredus", "worker", "shop:app", *args],
                cwd=self.folder,
                env=self.environment(),
                stderr=log,
                stdout=log,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def notes(self) -> list[str]:
        try:
            return (self.folder / "notes").read_text().splitlines()
        except FileNotFoundError:
            return []

    def close(self) -> None:
        for process in self._started:
            with process:
                end(process)
        self.client.close()


@pytest.fixture
def shop(tmp_path: Path, valkey_server: RealServer) -> Iterator[Shop]:
    shop = Shop(tmp_path, valkey_server)
    yield shop
    shop.close()


@pytest.fixture
def send(shop: Shop) -> Iterator[Callable[..., Any]]:
    """Enqueue from the test."""
    from veredus import App

    app = App(shop.server.url)
    yield app.enqueue_sync
    app.close_sync()


@pytest.fixture
def veredus(
    valkey_server: RealServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Runs a command in this process, as in a pipe, against an empty server."""
    monkeypatch.setenv("VEREDUS_REDIS_URL", valkey_server.url)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    command = Command(valkey_server, capsys)
    yield command
    command.redis.close()
