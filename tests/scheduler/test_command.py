"""`veredus scheduler` and `veredus worker --no-scheduler`: exit codes and signals."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import running, veredus
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, until_sync
from veredus.wire import keys

GOOD = "from veredus import App\napp = App()\n@app.cron('@every 1s', queue='q')\nasync def beat(): ...\n"
NONE = "from veredus import App\napp = App()\n"
BAD = "from veredus import App\napp = App()\n@app.cron('61 * * * *')\nasync def beat(): ...\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(veredus(*arguments), cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@VALKEY_ONLY
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_until_a_signal(server: RealServer, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    command = veredus("scheduler", "shop:app", "--redis", server.url)
    with running(command, cwd=tmp_path, stderr=subprocess.PIPE) as process, server.client() as client:
        until_sync(lambda: client.llen(keys.pending("q")), what="a tick")
        process.send_signal(number)
        _, log = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, log
        assert not client.keys("asynq:veredus:*")
    assert "leads 1 entries" in log


@VALKEY_ONLY
def test_its_log_is_json_if_wanted_and_as_quiet_as_wanted(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    said = []
    for more in (["--log-format", "json"], ["--log-level", "warning"]):
        command = veredus("scheduler", "shop:app", "--redis", server.url, *more)
        with running(command, cwd=tmp_path, stderr=subprocess.PIPE) as process, server.client() as client:
            until_sync(lambda: client.keys("asynq:veredus:scheduler_leader:*"), what="the leader")
            process.terminate()
            said.append(process.communicate(timeout=PATIENCE)[1])
    assert any("leads 1 entries" in json.loads(line)["message"] for line in said[0].splitlines())
    assert json.loads(said[0].splitlines()[0])["message"].startswith("server: ")
    assert [line.partition(" ")[0] for line in said[1].splitlines()] == ["server:"]


@pytest.mark.parametrize(
    ("source", "arguments", "code", "text"),
    [
        (NONE, (), 2, "declare some with @app.cron"),
        (BAD, (), 2, "spec: minute"),
        (GOOD, ("--redis", "unix:///nowhere/s"), 3, "/nowhere/s"),
        (GOOD, ("--redis", "nonsense"), 2, "redis url"),
    ],
)
def test_exit_codes(tmp_path: Path, source: str, arguments: tuple[str, ...], code: int, text: str) -> None:
    (tmp_path / "shop.py").write_text(source)
    done = run(tmp_path, "scheduler", "shop:app", *arguments)
    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("veredus: ")
    assert text in last


@VALKEY_ONLY
def test_a_worker_runs_the_schedules_unless_told_not_to(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    with server.client() as client:
        for flag, leads in (("--no-scheduler", False), ("--scheduler", True)):
            command = veredus("worker", "shop:app", "--redis", server.url, flag)
            with running(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as worker:
                until_sync(lambda: client.exists(keys.SERVERS), what="the worker")
                if leads:
                    until_sync(lambda: client.keys("asynq:veredus:scheduler_leader:*"), what="the leader")
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(PATIENCE) == 0
            assert bool(client.keys("asynq:{q}:cron:*")) is leads
