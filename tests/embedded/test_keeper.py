"""The keeper: stops an idle server, leaves a used one alone, and may itself be killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from veredus import embedded
from veredus.embedded import locks
from veredus.embedded.folder import Folder
from veredus.embedded.probe import Probe

from .conftest import eventually, is_alive, keeper_pid, kill


def test_stops_the_server_after_its_last_client_has_left(data: Path) -> None:
    server = embedded.ensure(data, linger=2.0)
    keeper = keeper_pid(data)
    with Probe(server.socket) as client:
        embedded.ensure(data, linger=0.5)
        client.ask("SET", "horse", "veredus")
        # Not an event but its absence: more than twice the linger, and it must still be there.
        time.sleep(1.5)
        assert client.ask("GET", "horse") == "veredus"
        left = time.monotonic()
    eventually(lambda: not is_alive(server.pid))
    assert time.monotonic() - left >= 0.3
    eventually(lambda: not is_alive(keeper))
    assert "ready to exit" in (data / "server.log").read_text(), "a clean end"
    again = embedded.ensure(data)
    with Probe(again.socket) as client:
        assert client.ask("GET", "horse") == "veredus"


def test_looking_does_not_keep_it_alive(data: Path) -> None:
    server = embedded.ensure(data, linger=0.3)
    eventually(lambda: embedded.status(data) is None)
    assert not is_alive(server.pid)


def test_every_ensure_and_every_short_connection_counts_as_use(data: Path) -> None:
    server = embedded.ensure(data, linger=1.0)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert embedded.ensure(data, linger=1.0).pid == server.pid
        time.sleep(0.1)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        Probe(server.socket).close()
        time.sleep(0.1)
    assert is_alive(server.pid)


def test_the_latest_linger_holds(data: Path) -> None:
    server = embedded.ensure(data, linger=2.0)
    embedded.ensure(data, linger=0.2)
    eventually(lambda: not is_alive(server.pid))


def test_the_linger_may_come_from_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEREDUS_EMBEDDED_LINGER", "0.3")
    server = embedded.ensure(data)
    eventually(lambda: not is_alive(server.pid))


def test_killed_with_9_the_next_ensure_gives_the_living_server_a_new_one(data: Path) -> None:
    server = embedded.ensure(data)
    first = keeper_pid(data)
    kill(first)
    assert is_alive(server.pid)
    assert embedded.ensure(data, linger=0.5) == server, "the server lives on, clients notice nothing"
    eventually(lambda: keeper_pid(data) != first)
    second = keeper_pid(data)
    eventually(lambda: not is_alive(server.pid))
    eventually(lambda: not is_alive(second))


def test_keeper_and_server_killed_with_9(data: Path) -> None:
    first = embedded.ensure(data)
    kill(keeper_pid(data))
    kill(first.pid)
    second = embedded.ensure(data)
    assert second.pid != first.pid
    with Probe(second.socket) as probe:
        assert probe.ask("PING") == "PONG"


def test_a_server_without_keeper_can_be_stopped(data: Path) -> None:
    server = embedded.ensure(data)
    kill(keeper_pid(data))
    assert embedded.status(data) == server
    assert embedded.stop(data) is True
    assert not is_alive(server.pid)


def test_ends_when_the_server_dies(data: Path) -> None:
    server = embedded.ensure(data)
    keeper = keeper_pid(data)
    kill(server.pid)
    eventually(lambda: not is_alive(keeper))
    assert not locks.is_held(Folder.at(data).keeper_lock)


def test_told_to_end_it_stops_the_server_cleanly(data: Path) -> None:
    server = embedded.ensure(data)
    keeper = keeper_pid(data)
    os.kill(keeper, signal.SIGTERM)
    eventually(lambda: not is_alive(keeper))
    assert not is_alive(server.pid)
    assert "ready to exit" in (data / "server.log").read_text()
