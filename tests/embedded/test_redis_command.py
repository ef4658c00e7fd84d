"""`veredus redis`: in the foreground, status and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import processes
from tests.support.waiting import PATIENCE, until_sync
from veredus import embedded
from veredus.cli.redis import redis_group
from veredus.embedded import locks
from veredus.embedded.folder import Folder
from veredus.embedded.foreground import _Signals
from veredus.embedded.probe import Probe
from veredus.errors import EmbeddedError

from .conftest import is_alive, kill


@pytest.fixture
def foreground(data: Path) -> Iterator[subprocess.Popen[str]]:
    code = "from veredus.cli.redis import redis_group; redis_group()"
    command = [sys.executable, "-c", code, "--data", str(data)]
    with processes.running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        yield process


def running(data: Path) -> embedded.EmbeddedServer:
    until_sync(lambda: embedded.status(data))
    server = embedded.ensure(data)  # waits until it answers
    assert server is not None
    return server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_runs_until_a_signal(data: Path, foreground: subprocess.Popen[str], number: int) -> None:
    server = running(data)
    assert not (data / "keeper.log").exists(), "whoever runs it in the foreground is its keeper"
    with Probe(server.socket) as probe:
        assert probe.ask("PING") == "PONG"
    foreground.send_signal(number)
    output, _ = foreground.communicate(timeout=30)
    assert foreground.returncode == 0
    assert not is_alive(server.pid)
    lines = output.splitlines()
    assert lines[0].startswith(f"{server.product} {server.version} (")
    assert lines[1] == f"data in {data}"
    assert f"  export VEREDUS_REDIS_URL={server.url}" in lines
    assert any("Ready to accept connections" in line for line in lines), "the server's own log"


def test_a_signal_that_comes_while_the_server_is_being_started_is_passed_on() -> None:
    signals = _Signals()
    signals.receive(signal.SIGINT, None)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            signals.pass_on_to(process)
            assert process.wait(PATIENCE) == -signal.SIGTERM
        finally:
            process.kill()


def test_foreground_refuses_a_second_one(data: Path, foreground: subprocess.Popen[str]) -> None:
    server = running(data)
    with pytest.raises(EmbeddedError, match=rf"already running: .*\(pid {server.pid}\)"):
        embedded.run_foreground(data)
    result = CliRunner().invoke(redis_group, ["--data", str(data)])
    assert isinstance(result.exception, EmbeddedError)


def test_stop_ends_the_foreground_one(data: Path, foreground: subprocess.Popen[str]) -> None:
    running(data)
    result = CliRunner().invoke(redis_group, ["--data", str(data), "stop"])
    assert result.exit_code == 0
    assert foreground.wait(timeout=30) == 0


def test_foreground_killed_with_9_leaves_a_server_that_is_adopted(
    data: Path, foreground: subprocess.Popen[str]
) -> None:
    server = running(data)
    os.kill(foreground.pid, signal.SIGKILL)
    foreground.wait(timeout=30)
    assert embedded.ensure(data, linger=0.3) == server
    until_sync(lambda: not is_alive(server.pid))


def test_foreground_server_killed_with_9(data: Path, foreground: subprocess.Popen[str]) -> None:
    kill(running(data).pid)
    assert foreground.wait(timeout=30) == 128 + signal.SIGKILL


def test_status_and_stop(data: Path) -> None:
    runner, folder = CliRunner(), ["--data", str(data)]
    result = runner.invoke(redis_group, [*folder, "status"])
    assert (result.exit_code, result.output) == (1, f"no embedded server is running in {data}\n")
    result = runner.invoke(redis_group, [*folder, "status", "--json"])
    assert (result.exit_code, json.loads(result.output)) == (1, {"running": False, "data": str(data)})

    server = embedded.ensure(data)
    result = runner.invoke(redis_group, [*folder, "status"])
    assert (result.exit_code, result.output) == (0, f"{server.describe()}\n{server.url}\n")
    result = runner.invoke(redis_group, [*folder, "status", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["running"] is True
    assert (facts["pid"], facts["url"], facts["data"]) == (server.pid, server.url, str(data))

    result = runner.invoke(redis_group, [*folder, "stop"])
    assert (result.exit_code, result.output) == (0, f"stopped: {server.describe()}\n")
    result = runner.invoke(redis_group, [*folder, "stop"])
    assert (result.exit_code, result.output) == (0, f"no embedded server is running in {data}\n")


def test_help_has_examples() -> None:
    assert "veredus redis status" in CliRunner().invoke(redis_group, ["--help"]).output


def test_stop_waits_no_longer_than_it_is_told(data: Path) -> None:
    server = embedded.ensure(data)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        result = CliRunner().invoke(redis_group, ["--data", str(data), "stop", "--timeout", "0.2"])
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert isinstance(result.exception, EmbeddedError)
    assert f"the server (pid {server.pid}) of {data} did not shut down: timed out" in str(result.exception)


def test_stop_waits_for_a_shutdown_that_is_under_way(data: Path) -> None:
    server = embedded.ensure(data)
    os.kill(server.pid, signal.SIGSTOP)
    os.unlink(server.socket)  # what a server does first when it shuts down
    os.kill(server.pid, signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(embedded.stop, data)
        until_sync(lambda: locks.is_held(Folder.at(data).start_lock))
        os.kill(server.pid, signal.SIGCONT)
        assert stopped.result() is True
    assert not is_alive(server.pid)
