"""Whatever a test can leave behind is found, named and ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.leaks import Leak, SharedServers, nothing_left_behind
from tests.support.waiting import until_sync

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="leaks are read from /proc")

SHORT = 0.3  # seconds of patience: what is left behind here stays
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
ORPHAN = f"""
import subprocess
print(subprocess.Popen({SLEEPER!r}, start_new_session=True, stdout=-3, stderr=-3).pid)
"""


@pytest.fixture
def servers() -> Iterator[SharedServers]:
    servers = SharedServers(patience=SHORT)
    yield servers
    servers.close()


def _is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return ") Z" in stat.read_text()
    except OSError:
        return True


def test_a_test_that_cleans_up_passes(servers: SharedServers) -> None:
    with nothing_left_behind("tidy", servers, SHORT):
        servers.get("valkey").client().set("key", 1)
        subprocess.run([sys.executable, "-c", ""], check=True)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
    assert servers.get("valkey").flush() == []


def test_a_child_is_found_and_ended(servers: SharedServers) -> None:
    found = pytest.raises(Leak, match=r"untidy left behind: process \d+: .*signal.pause")
    with found, nothing_left_behind("untidy", servers, SHORT):
        child = subprocess.Popen(SLEEPER, env={})  # without the mark: found because it is a child
    assert child.wait(30) == -signal.SIGKILL


def test_an_orphan_in_a_session_of_its_own_is_found_and_ended(servers: SharedServers) -> None:
    found = pytest.raises(Leak, match=r"process \d+: .*signal.pause")
    with found, nothing_left_behind("untidy", servers, SHORT):
        told = subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True, text=True)
    until_sync(lambda: _is_gone(int(told.stdout)), what="the end of the orphan")


def test_a_socket_that_is_still_held_is_found(servers: SharedServers) -> None:
    found = pytest.raises(Leak, match=r"socket:\[\d+\] of this process")
    with found, nothing_left_behind("untidy", servers, SHORT):
        held = socket.socket()
    held.close()


def test_a_connection_to_a_shared_server_is_found_and_closed(servers: SharedServers) -> None:
    held = socket.socket(socket.AF_UNIX)

    def leave_one() -> None:
        with nothing_left_behind("untidy", servers, SHORT):
            server = servers.get("valkey")
            held.connect(server.socket)
            until_sync(server.connections, what="the connection")

    with pytest.raises(Leak, match="a connection to valkey: id="):
        leave_one()
    assert held.recv(1) == b""  # the server was told to close it
    held.close()


def test_keys_that_come_after_the_end_are_told_with_the_test_they_are_of(servers: SharedServers) -> None:
    with nothing_left_behind("the late writer", servers, SHORT):
        server = servers.get("valkey")
    with server.client() as client:
        client.set("late", 1)
    with pytest.raises(Leak, match=r"the late writer ended and something of it still wrote to valkey: \['late'\]"):
        servers.get("valkey")
    assert servers.get("valkey").flush() == []
