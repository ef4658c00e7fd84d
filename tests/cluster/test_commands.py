"""The command line on a cluster and behind Sentinel: every command that looks, and those that change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import Command, fill
from tests.cluster.conftest import Place
from tests.support.processes import running
from tests.support.waiting import PATIENCE, until_sync

LOOKING = [
    "stats",
    "queue list",
    "queue inspect mail other",
    "queue history mail --days 3",
    "task list -q mail -s pending",
    "task list -q mail -s scheduled --type sms:*",
    "task list -q mail -s retry --error TIMEOUT",
    "task list -q mail -s archived",
    "task list -q mail -s completed",
    "task list -q mail -s aggregating -g digest",
    "task inspect -q mail -i later",
    "task leases",
    "group list -q mail",
    "server list",
    "worker list",
    "cron list",
]
CHANGING = [
    "task enqueue -t some:type -l 1 -q mail --id new",
    "task run -q mail -i failed",
    "task archive -q mail -i new",
    "task move -q mail -i later --to other",
    "task reschedule -q other -i later --in 60s",
    "task edit -q mail -i later-sms -l 9",
    "task delete -q mail -i later-sms",
    "task run -q mail --all -s archived -y",
    "task delete -q mail --all -s pending -y",
    "queue pause other",
    "queue resume other",
    "queue remove mail --force -y",
]


@pytest.fixture
def veredus(place: Place, capsys: pytest.CaptureFixture[str]) -> Command:
    class Here:
        url = place.url

        def client(self) -> None:
            return None

    fill(place.url)
    return Command(Here(), capsys)  # type: ignore[arg-type]


def test_every_command_that_looks(veredus: Command, place: Place) -> None:
    for line in LOOKING:
        ended = veredus.do(f"{line} --redis {place.url}")
        assert (ended.code, ended.err) == (0, ""), line
        shown = veredus.do(f"{line} --json --redis {place.url}").json
        if "mail" in line:
            assert shown, line
    assert "mail" in veredus.do(f"top --once --redis {place.url}").out
    doctor = veredus.do(f"doctor --json --redis {place.url}")
    assert doctor.code == 1, "servers without persistence are broken"
    found = json.loads(doctor.out)
    assert {one["kind"] for one in found if one["level"] == "bad"} == {"persistence"}


def test_commands_that_change(veredus: Command, place: Place) -> None:
    for line in CHANGING:
        ended = veredus.do(f"{line} --redis {place.url}")
        assert ended.code == 0, (line, ended)
    names = [one["queue"] for one in veredus.do(f"queue list --json --redis {place.url}").json]
    assert names == ["other"]


def test_a_worker_and_a_scheduler_of_their_own(place: Place, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import veredus\n"
        "app = veredus.App()\n"
        "@app.task(name='note', queue='one')\n"
        "async def note(n: int) -> None:\n"
        "    open(f'ran-{n}', 'w').close()\n"
        "app.schedule('@every 1s', note.call(99))\n"
    )
    environment = {**os.environ, "VEREDUS_REDIS": place.url, "REDIS_URL": place.url}

    def run(*args: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "veredus", *args, "--redis", place.url]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=seconds)

    for n in range(2):
        ended = run("task", "enqueue", "-t", "note", "-l", json.dumps({"n": n}), "-q", "one")
        assert ended.returncode == 0, ended.stderr
    ended = run("worker", "shop:app", "--burst")
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in tmp_path.glob("ran-*")) == ["ran-0", "ran-1"]
    command = [sys.executable, "-m", "veredus", "worker", "shop:app", "--lease", "1", "--redis", place.url]
    with running(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as worker:
        name = until_sync(lambda: run("worker", "list").stdout.splitlines()[1:], what="the worker")[0].split()[0]
        assert run("worker", "stop", name).returncode == 0
        assert worker.wait(PATIENCE) == 0
    command = [sys.executable, "-m", "veredus", "scheduler", "shop:app", "--redis", place.url]
    with running(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as scheduler:

        def ticked() -> bool:
            return "note" in run("task", "list", "-q", "one", "-s", "pending").stdout

        until_sync(ticked, what="a tick")
        scheduler.terminate()
        assert scheduler.wait(PATIENCE) == 0
