"""The keeper: stops an idle server, leaves a used one alone, and may itself be killed."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.waiting import pause_sync, until_sync
from veredus import embedded
from veredus.embedded import locks
from veredus.embedded.folder import Folder
from veredus.embedded.keeper import _Keeper
from veredus.embedded.probe import Probe

from .conftest import is_alive, keeper_pid, kill


def test_stops_the_server_after_its_last_client_has_left(data: Path) -> None:
    server = embedded.ensure(data, linger=60.0)
    keeper = keeper_pid(data)
    with Probe(server.socket) as client:
        embedded.ensure(data, linger=0.5)
        client.ask("SET", "horse", "veredus")
        pause_sync(1.5, proves="a client keeps it alive for longer than the linger")
        assert client.ask("GET", "horse") == "veredus"
        left = time.monotonic()
    until_sync(lambda: not is_alive(server.pid))
    assert time.monotonic() - left >= 0.3
    until_sync(lambda: not is_alive(keeper))
    assert "ready to exit" in (data / "server.log").read_text(), "a clean end"
    again = embedded.ensure(data)
    with Probe(again.socket) as client:
        assert client.ask("GET", "horse") == "veredus"


def test_looking_does_not_keep_it_alive(data: Path) -> None:
    server = embedded.ensure(data, linger=0.3)
    until_sync(lambda: embedded.status(data) is None)
    assert not is_alive(server.pid)


def test_every_ensure_and_every_short_connection_counts_as_use(data: Path) -> None:
    server = embedded.ensure(data, linger=1.5)
    for use in (lambda: embedded.ensure(data, linger=1.5), lambda: Probe(server.socket).close()):
        enough = time.monotonic() + 2.0
        while time.monotonic() < enough:
            use()
            pause_sync(0.02, proves="it is used before its time is over")
            assert is_alive(server.pid)


def test_the_latest_linger_holds(data: Path) -> None:
    server = embedded.ensure(data, linger=60.0)
    embedded.ensure(data, linger=0.2)
    until_sync(lambda: not is_alive(server.pid))


def test_the_linger_may_come_from_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEREDUS_EMBEDDED_LINGER", "0.3")
    server = embedded.ensure(data)
    until_sync(lambda: not is_alive(server.pid))


def test_killed_with_9_the_next_ensure_gives_the_living_server_a_new_one(data: Path) -> None:
    server = embedded.ensure(data)
    first = keeper_pid(data)
    kill(first)
    assert is_alive(server.pid)
    assert embedded.ensure(data, linger=0.5) == server, "the server lives on, clients notice nothing"
    until_sync(lambda: keeper_pid(data) != first)
    second = keeper_pid(data)
    until_sync(lambda: not is_alive(server.pid))
    until_sync(lambda: not is_alive(second))


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
    until_sync(lambda: not is_alive(keeper))
    assert not locks.is_held(Folder.at(data).keeper_lock)


def test_told_to_end_it_stops_the_server_cleanly(data: Path) -> None:
    server = embedded.ensure(data)
    keeper = keeper_pid(data)
    os.kill(keeper, signal.SIGTERM)
    until_sync(lambda: not is_alive(keeper))
    assert not is_alive(server.pid)
    assert "ready to exit" in (data / "server.log").read_text()


def test_keeps_its_socket_fresh_so_that_no_cleaner_of_temporary_folders_takes_it(data: Path) -> None:
    server = embedded.ensure(data, linger=0.2)
    with Probe(server.socket):
        os.utime(server.socket, (1, 1))
        until_sync(lambda: os.stat(server.socket).st_mtime > 1, what="a fresh socket")


def test_looks_once_more_before_it_stops_a_server(data: Path) -> None:
    """Somebody may have come since the last look: it stops what is still as it was, and nothing else."""
    server = embedded.ensure(data)
    kill(keeper_pid(data))
    folder = Folder.at(data)
    lock = locks.take(folder.keeper_lock, timeout=10.0)
    keeper = _Keeper(folder, lock)
    keeper._socket = server.socket
    with Probe(server.socket) as probe:
        until_sync(lambda: keeper._look(probe), what="a server without other clients")
        seen = keeper._look(probe)
        assert seen is not None
        Probe(server.socket).close()
        assert keeper._stop_if_idle(probe, seen) is False
        assert is_alive(server.pid)
        until_sync(lambda: keeper._look(probe), what="a server without other clients")
        seen = keeper._look(probe)
        assert seen is not None
        assert keeper._stop_if_idle(probe, seen) is True
    assert not is_alive(server.pid)
    assert not locks.is_held(folder.keeper_lock)


def test_stop_returns_only_when_the_keeper_has_left_too(data: Path) -> None:
    server = embedded.ensure(data)
    keeper = keeper_pid(data)
    with ThreadPoolExecutor(1) as pool:
        os.kill(keeper, signal.SIGSTOP)
        try:
            stopping = pool.submit(embedded.stop, data, 30.0)
            # the frozen keeper is its parent and cannot collect it, but it holds nothing any more
            until_sync(lambda: not locks.is_held(Folder.at(data).server_lock), what="the end of the server")
            pause_sync(0.2, proves="it waits for the keeper")
            assert not stopping.done()
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert stopping.result(timeout=30) is True
    assert not locks.is_held(Folder.at(data).keeper_lock)
    assert not is_alive(server.pid)


def test_without_its_socket_the_server_is_stopped_and_the_next_one_has_its_data(data: Path) -> None:
    """Cleaners of temporary folders take such files away; nobody could connect any more."""
    server = embedded.ensure(data, linger=0.4)
    with Probe(server.socket) as client:
        client.ask("SET", "horse", "veredus")
        log = Folder.at(data).keeper_log  # one that has not connected yet would wait for the socket to appear
        until_sync(lambda: "keeping the server" in log.read_text(), what="a keeper that is connected")
        os.unlink(server.socket)
        until_sync(lambda: not is_alive(server.pid), what="the end of the server")
    assert "nobody can connect any more" in Folder.at(data).keeper_log.read_text()
    until_sync(lambda: not locks.is_held(Folder.at(data).keeper_lock), what="the end of the keeper")
    with Probe(embedded.ensure(data).socket) as client:
        assert client.ask("GET", "horse") == "veredus"


def test_an_idle_server_stays_while_somebody_is_about_to_start_one(data: Path) -> None:
    server = embedded.ensure(data, linger=4.0)  # the keeper looks every second
    with Probe(server.socket):
        lock = locks.take(Folder.at(data).start_lock, timeout=30.0)
        Folder.at(data).note_use(0.2)
    with lock:
        pause_sync(2.0, proves="it is not stopped under the feet of the one who holds the lock")
        assert is_alive(server.pid)
    until_sync(lambda: not is_alive(server.pid), what="the end of the idle server")


def test_reconnecting_to_a_server_without_a_socket_ends_the_server(data: Path) -> None:
    server = embedded.ensure(data)
    kill(keeper_pid(data))
    folder = Folder.at(data)
    adopting = _Keeper(folder, locks.take(folder.keeper_lock, timeout=1.0))
    adopting._socket = server.socket
    os.unlink(server.socket)
    with pytest.raises(ConnectionError, match="is gone"):
        adopting._connect_again()
    until_sync(lambda: not is_alive(server.pid))
    adopting._lock.release()
