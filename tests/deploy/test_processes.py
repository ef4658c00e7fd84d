"""Every command of the compose file and of the units starts, is healthy, and stops at SIGTERM."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, UNITS, ours, unit
from tests.support.processes import running, veredus
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, until_sync

SECRET = "a-secret-for-tests-of-at-least-32-characters"
HTTP = {"gateway": "8767", "worker": "9090", "dashboard": "8787"}
"""The port whose `/healthz`, or first page, says that a process is there."""


def environment(server: RealServer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VEREDUS_")}
    tokens = dict.fromkeys(("SHOP_JWT_KEY", "VEREDUS_HTTP_TOKEN", "VEREDUS_DASH_TOKEN"), SECRET)
    return kept | tokens | {"VEREDUS_REDIS_URL": server.url, "VEREDUS_EMBEDDED": "0"}


def moved(words: Sequence[str], ports: Mapping[str, str]) -> list[str]:
    """The same with other ports, so that tests can run beside each other and beside a real one."""
    return [re.sub(r"\b(?:8765|8767|8787|9090)\b", lambda found: ports[found[0]], word) for word in words]


def starts_and_stops(name: str, words: list[str], check: list[str], server: RealServer, log: Path) -> None:
    ports = {port: str(free_port()) for port in ("8765", "8767", "8787", "9090")}
    variables = environment(server)
    with (
        log.open("wb") as output,
        running(
            veredus(*moved(words, ports)), cwd=DEPLOY / "app", env=variables, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):

        def healthy() -> bool:
            assert process.poll() is None, log.read_text()
            return subprocess.run(moved(check, ports), capture_output=True, timeout=PATIENCE).returncode == 0

        until_sync(healthy, what=f"a healthy {name}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=2 * PATIENCE) in (0, -signal.SIGTERM), log.read_text()


@pytest.mark.parametrize("name", ours())
def test_a_service_is_healthy_and_stops(name: str, valkey_server: RealServer, tmp_path: Path) -> None:
    service = ours()[name]
    command, *check = service["healthcheck"]["test"]
    assert (command, check[0]) == ("CMD", "python")
    starts_and_stops(name, service["command"], [sys.executable, *check[1:]], valkey_server, tmp_path / "log")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_healthy_and_stops(path: Path, valkey_server: RealServer, tmp_path: Path) -> None:
    name = path.stem.removeprefix("veredus-")
    words = shlex.split(unit(path)["Service"]["ExecStart"])[1:]
    if name == "gateway":
        words += ["--http", "127.0.0.1:8767"]  # the default, whose port is moved as well
    place = "/" if name == "dashboard" else "/healthz"
    program = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{HTTP[name]}{place}', timeout=10)"
    starts_and_stops(name, words, [sys.executable, "-c", program], valkey_server, tmp_path / "log")


def test_a_health_check_fails_without_its_process() -> None:
    ports = {port: str(free_port()) for port in HTTP.values()} | {"8765": "1"}
    for service in ours().values():
        check = [sys.executable, *service["healthcheck"]["test"][2:]]
        assert subprocess.run(moved(check, ports), capture_output=True, timeout=PATIENCE).returncode != 0
