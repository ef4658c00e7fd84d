"""Start on demand, one for all, data that survive, status and stop."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.support.processes import running
from tests.support.waiting import until_sync
from veredus import App, embedded
from veredus.embedded import sockets
from veredus.embedded.folder import LOG_LIMIT, Folder
from veredus.embedded.probe import Probe
from veredus.errors import ConfigError, EmbeddedError

from .conftest import clean_up, is_alive, kill


def ask(server: embedded.EmbeddedServer, *words: str) -> str | None:
    with Probe(server.socket) as probe:
        return probe.ask(*words)


def test_starts_on_demand_and_answers(data: Path) -> None:
    assert embedded.status(data) is None
    assert not data.exists(), "looking creates nothing"
    server = embedded.ensure(data)
    assert ask(server, "PING") == "PONG"
    assert server.url == f"unix://{server.socket}"
    assert is_alive(server.pid)
    found = embedded.find_binary()
    assert (server.product, server.version, server.binary) == (found.product, found.version, found.path)
    assert server.describe() == f"embedded {found.product} {found.version} in {data} (pid {server.pid})"


def test_the_second_call_finds_the_same_server(data: Path) -> None:
    server = embedded.ensure(data)
    assert embedded.ensure(data) == server
    assert embedded.status(data) == server


def test_settings_of_the_server(data: Path) -> None:
    server = embedded.ensure(data)
    with Probe(server.socket) as probe:
        assert probe.info("persistence")["aof_enabled"] == "1"
        assert probe.info("memory")["maxmemory_policy"] == "noeviction"
        assert probe.info("server")["tcp_port"] == "0"
        assert probe.info("server")["process_id"] == str(server.pid)


def test_many_processes_at_once_share_one_server(data: Path) -> None:
    code = f"from veredus import embedded; print(embedded.ensure({str(data)!r}).pid)"
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", code]
        processes = [stack.enter_context(running(command, stdout=subprocess.PIPE)) for _ in range(6)]
        pids = [process.communicate(timeout=60)[0].strip() for process in processes]
    server = embedded.status(data)
    assert server is not None
    assert pids == [str(server.pid)] * 6


def test_many_threads_at_once_share_one_server(data: Path) -> None:
    servers: list[embedded.EmbeddedServer] = []
    threads = [threading.Thread(target=lambda: servers.append(embedded.ensure(data))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(servers) == 6
    assert len(set(servers)) == 1


def test_data_survive_stop_and_start(data: Path) -> None:
    first = embedded.ensure(data)
    ask(first, "SET", "horse", "veredus")
    assert embedded.stop(data) is True
    assert not is_alive(first.pid)
    second = embedded.ensure(data)
    assert second.pid != first.pid
    assert ask(second, "GET", "horse") == "veredus"


def test_data_survive_kill_9_of_the_server(data: Path) -> None:
    first = embedded.ensure(data)
    ask(first, "SET", "horse", "veredus")
    kill(first.pid)
    second = embedded.ensure(data)
    assert second.pid != first.pid
    assert ask(second, "GET", "horse") == "veredus"


def test_stop_and_status_without_a_server(data: Path) -> None:
    assert embedded.stop(data) is False
    embedded.ensure(data)
    assert embedded.stop(data) is True
    assert embedded.status(data) is None
    assert embedded.stop(data) is False


def test_only_the_user_can_read_it(data: Path) -> None:
    old = os.umask(0o002)
    try:
        data.mkdir()
        server = embedded.ensure(data)
    finally:
        os.umask(old)
    for path in [data, *data.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert stat.S_IMODE(os.stat(server.socket).st_mode) == 0o600


def test_a_foreign_folder_that_others_may_write_is_refused(data: Path) -> None:
    data.mkdir()
    (data / "notes.txt").write_text("mine")
    data.chmod(0o777)
    with pytest.raises(EmbeddedError, match="others may write"):
        embedded.ensure(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o777


def test_a_long_path_gets_a_short_socket(data: Path) -> None:
    deep = data / ("x" * 100) / "folder with 'quotes' and spaces"
    try:
        server = embedded.ensure(deep)
        assert ask(server, "PING") == "PONG"
        assert len(os.fsencode(server.socket)) <= sockets.LONGEST
        assert stat.S_IMODE(os.stat(os.path.dirname(server.socket)).st_mode) == 0o700
        assert str(server.socket) in (deep / "server.json").read_text()
        assert embedded.ensure(deep) == server
    finally:
        clean_up(deep)


def test_a_runtime_folder_that_others_may_enter_or_that_is_a_link_gets_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(tempfile.mkdtemp(prefix="vr-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    long, folder = tmp_path / ("x" * 100), base / "veredus"
    try:
        assert Path(sockets.choose(long)).parent == folder
        folder.chmod(0o755)
        assert Path(sockets.choose(long)).parent != folder
        folder.rmdir()
        folder.symlink_to(tmp_path)
        tmp_path.chmod(0o700)
        assert Path(sockets.choose(long)).parent != folder
    finally:
        shutil.rmtree(base)


def test_the_environment_names_the_folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEREDUS_DATA", str(data))
    assert embedded.ensure().data == str(data)


@pytest.mark.skipif(sys.platform == "darwin", reason="XDG is for Linux")
def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from veredus.embedded.settings import data_path

    monkeypatch.chdir("/")  # a folder of no project

    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert data_path(None) == Path("/home/somebody/.local/share/veredus")
    monkeypatch.setenv("XDG_DATA_HOME", "/else/where")
    assert data_path(None) == Path("/else/where/veredus")
    monkeypatch.setenv("XDG_DATA_HOME", "else/where")  # the specification: a relative one is to be ignored
    assert data_path(None) == Path("/home/somebody/.local/share/veredus")


@pytest.mark.parametrize("value", ["0", "false", "No", "OFF"])
def test_the_environment_forbids_it(data: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VEREDUS_EMBEDDED", value)
    with pytest.raises(EmbeddedError, match=rf"VEREDUS_EMBEDDED={value} forbids .* VEREDUS_REDIS_URL"):
        embedded.ensure(data)
    with pytest.raises(EmbeddedError, match="forbids"):
        embedded.run_foreground(data)
    assert not data.exists()


def test_wrong_settings_are_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="linger: got -1"):
        embedded.ensure(data, linger=-1)
    monkeypatch.setenv("VEREDUS_EMBEDDED_LINGER", "soon")
    with pytest.raises(ConfigError, match="VEREDUS_EMBEDDED_LINGER: got 'soon'"):
        embedded.ensure(data)
    monkeypatch.setenv("VEREDUS_EMBEDDED", "perhaps")
    with pytest.raises(ConfigError, match="VEREDUS_EMBEDDED: got 'perhaps'"):
        embedded.ensure(data)


def test_a_server_that_cannot_start_says_why(data: Path) -> None:
    server = embedded.ensure(data)
    ask(server, "SET", "horse", "veredus")
    embedded.stop(data)
    written = json.loads((data / "server.json").read_text())
    written["version"] = "6.2.0"
    (data / "server.json").write_text(json.dumps(written))
    manifest = data / "appendonlydir" / "appendonly.aof.manifest"
    if not manifest.exists():
        pytest.skip("this server has no manifest to spoil")
    manifest.write_text("nonsense\n")
    with pytest.raises(EmbeddedError, match=r"(?s)did not start\n.*server\.log:\n.*manifest"):
        embedded.ensure(data)
    assert embedded.status(data) is None
    assert json.loads((data / "server.json").read_text()) == written, "it wrote nothing, so the record is as before"


def test_a_removed_folder_ends_its_server(data: Path) -> None:
    server = embedded.ensure(data, linger=1.0)
    with Probe(server.socket):
        shutil.rmtree(data)
        until_sync(lambda: not is_alive(server.pid))


def test_a_log_that_has_grown_large_is_moved_aside(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.server_log.write_bytes(b"x" * LOG_LIMIT)
    os.close(folder.open_log(folder.server_log))
    assert folder.server_log.stat().st_size == LOG_LIMIT, "not yet too large"
    folder.server_log.write_bytes(b"x" * (LOG_LIMIT + 1))
    os.close(folder.open_log(folder.server_log))
    assert folder.server_log.stat().st_size == 0
    assert (tmp_path / "server.log.old").stat().st_size == LOG_LIMIT + 1


async def test_an_app_that_nobody_gave_an_address_says_loudly_which_server_it_uses(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A forgotten variable in production must not start a private queue silently."""
    monkeypatch.setenv("VEREDUS_DATA", str(data))
    for name in ("VEREDUS_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    async with App():
        pass
    (said,) = [record for record in caplog.records if "neither VEREDUS_REDIS_URL nor REDIS_URL" in record.message]
    assert said.levelname == "WARNING"
    assert str(data) in said.message
