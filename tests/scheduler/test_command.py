"""`veredus scheduler` and `veredus worker --no-scheduler`: exit codes and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import VALKEY_ONLY, RealServer, wait_for
from veredus.wire import keys

GOOD = "from veredus import App\napp = App()\n@app.cron('@every 1s', queue='q')\nasync def beat(): ...\n"
NONE = "from veredus import App\napp = App()\n"
BAD = "from veredus import App\napp = App()\n@app.cron('61 * * * *')\nasync def beat(): ...\n"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "veredus", *arguments]


def run(folder: Path, *arguments: str) -> Any:
    return subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, timeout=30)


@VALKEY_ONLY
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_until_a_signal(server: RealServer, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    process = subprocess.Popen(
        command("scheduler", "shop:app", "--redis", server.url), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    with server.client() as client:
        wait_for(lambda: client.llen(keys.pending("q")), what="a tick")
        process.send_signal(number)
        _, log = process.communicate(timeout=10)
        assert process.returncode == 0, log
        assert not client.keys("asynq:veredus:*")
    assert "leads 1 entries" in log


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
            worker = subprocess.Popen(
                command("worker", "shop:app", "--redis", server.url, flag), cwd=tmp_path, stderr=subprocess.DEVNULL
            )
            wait_for(lambda: client.exists(keys.SERVERS), what="the worker")
            if leads:
                wait_for(lambda: client.keys("asynq:veredus:scheduler_leader:*"), what="the leader")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == 0
            assert bool(client.keys("asynq:{q}:cron:*")) is leads
