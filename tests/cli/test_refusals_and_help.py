"""What is wrong is one line with the documented exit code; the doctor, completion, the demo and every --help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Shop
from tests.cli.support import Command, fill
from tests.support.servers import free_port
from veredus.cli.main import cli

QUEUE_LINES = [
    "queue inspect mial",
    "queue history mial",
    "queue pause mial",
    "queue resume mial",
    "queue remove mial -y",
    "task list -q mial -s pending",
    "task list -q mial -s pending --type x",
    "task inspect -q mial -i first",
    "task run -q mial -i first",
    "task archive -q mial -i first",
    "task delete -q mial -i first",
    "task delete -q mial -s pending --all -y",
    "task move -q mial -i first --to other",
    "task reschedule -q mial -i first --in 5",
    "task edit -q mial -i first -l x",
    "task leases -q mial",
    "group list -q mial",
    "doctor -q mial",
]
TASK_LINES = [
    "task inspect -q mail -i later-sm",
    "task run -q mail -i later-sm",
    "task archive -q mail -i later-sm",
    "task delete -q mail -i later-sm",
    "task move -q mail -i later-sm --to other",
    "task reschedule -q mail -i later-sm --in 5",
    "task edit -q mail -i later-sm -l x",
]
USAGE_LINES = [
    ("stats extra", "extra"),
    ("stats --jsn", "--json"),
    ("queue lst", "'list'"),
    ("queue pause", "QUEUE..."),
    ("queue history mail --days 0", "from 1 to 3650"),
    ("queue history mail --days x", "--days"),
    ("task list -q mail", "--state"),
    ("task list -s pending", "--queue"),
    ("task list -q mail -s waiting", "pending"),
    ("task list -q mail -s aggregating", "the name of a group"),
    ("task list -q mail -s pending --page 0", "--page: got 0"),
    ("task list -q mail -s pending --size 0 --type x", "--size: got 0"),
    ("task list -q mail -s pending --page -3 --type x", "--page: got -3"),
    ("task run -q mail", "either --id (once or more) or --all"),
    ("task run -q mail --all -i first -s retry", "either --id (once or more) or --all"),
    ("task run -q mail --all -y", "--state"),
    ("task run -q mail --all -s pending -y", "expected one of scheduled"),
    ("task archive -q mail --all -s archived -y", "expected one of pending"),
    ("task delete -q mail --all -s active -y", "expected one of"),
    ("task reschedule -q mail -i first", "either --at or --in"),
    ("task reschedule -q mail -i first --in nan", "--in"),
    ("task reschedule -q mail -i first --in soon", "a duration such as 30s"),
    ("task reschedule -q mail -i first --at 2040-01-01T00:00:00", "no time zone"),
    ("task move -q mail -i first --to mail", "another queue"),
    ("task edit -q mail -i first", "--payload"),
    ("task cancel", "either ids or --all"),
    ("task cancel x --all -q mail", "either ids or --all"),
    ("task cancel --all -y", "--queue"),
    ("task cancel x --then drop", "archive"),
    ("task lst -q mail", "did you mean 'list'"),
    ("cron run reports.daily", "VEREDUS_APP"),
    ("queue puase mail", "did you mean 'pause'"),
    ("server inspect", "SERVER..."),
    ("cron history", "ENTRY_ID..."),
    ("top --once --refresh fast", "--refresh"),
    ("completion bsh", "did you mean 'bash'"),
    ("completion", "SHELL"),
    ("stats --redis http://x", "redis://host"),
    ("tsk list", "did you mean 'task'"),
]


def test_an_unknown_queue_is_exit_code_1_with_the_nearest_name(veredus: Command) -> None:
    fill(veredus.url)
    before = veredus.everything()
    for line in QUEUE_LINES:
        veredus.do(line).refused(1, "no queue 'mial' (did you mean 'mail'?)")
        veredus.do(line.replace("mial", "qqqqq")).refused(1, "no queue 'qqqqq'\n")
    assert veredus.everything() == before


def test_an_unknown_id_is_exit_code_1_with_the_nearest_one(veredus: Command) -> None:
    fill(veredus.url)
    before = veredus.everything()
    for line in TASK_LINES:
        veredus.do(line).refused(1, "no task 'later-sm' in queue 'mail' (did you mean 'later-sms'?)")
        veredus.do(line.replace("later-sm", "alone")).refused(1, "'alone'", "it is in queue 'other'")
        veredus.do(line.replace("later-sm", "zzz")).refused(1, "no task 'zzz' in queue 'mail'\n")
    assert veredus.everything() == before


def test_wrong_usage_is_exit_code_2(veredus: Command) -> None:
    fill(veredus.url)
    before = veredus.everything()
    for line, text in USAGE_LINES:
        veredus.do(line).refused(2, text)
    assert veredus.everything() == before


@pytest.mark.parametrize("group", ["", "queue", "task", "group", "server", "cron"])
def test_a_group_alone_shows_its_help(veredus: Command, group: str) -> None:
    shown = veredus.do(group)
    assert (shown.code, shown.out) == (2, "")
    assert len(shown.err.splitlines()) > 8
    assert "Commands:" in shown.err.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "stats",
        "queue list",
        "queue pause mail",
        "task list -q mail -s pending",
        "task enqueue -t a -l x",
        "task delete -q mail -s pending --all -y",
        "group list -q mail",
        "server list",
        "cron list",
        "doctor --json",
        "top --once",
        "top",
    ],
)
def test_an_unreachable_server_is_exit_code_3(veredus: Command, line: str) -> None:
    port = free_port()
    veredus.do(f"{line} --redis redis://127.0.0.1:{port}").refused(3, f"127.0.0.1:{port}")


# The doctor.


def test_the_doctor_of_a_sound_server(veredus: Command) -> None:
    veredus.redis.config_set("save", "3600 1")
    try:
        fill(veredus.url)
        shown = veredus.do("doctor")
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.endswith("no damage found in the queues\n")
        assert "warn only snapshots" in shown.out
        found = veredus.do("doctor --json").json
        kinds = ["version", "eviction", "memory", "persistence", "clock", "latency"]
        assert [one["kind"] for one in found] == kinds
        assert {one["level"] for one in found} <= {"ok", "warn"}
    finally:
        veredus.redis.config_set("save", "")


def test_the_doctor_finds_and_repairs(veredus: Command) -> None:
    veredus.redis.config_set("save", "3600 1")
    try:
        fill(veredus.url)
        veredus.redis.rpush("asynq:{mail}:pending", "[b]ghost")
        veredus.redis.zrem("asynq:{mail}:archived", "dead")
        for line in ("doctor", "doctor -q mail"):
            shown = veredus.do(line)
            assert shown.code == 1
            assert "bad  queue 'mail': pending has the id '[b]ghost', but there is no such task -> remove" in shown.out
            assert "task 'dead' with the state archived is in no list" in shown.out
            assert "no damage found" not in shown.out
        assert veredus.do("doctor -q other").code == 0
        found = json.loads(veredus.do("doctor --json").out)
        expected = veredus.look(lambda inspector: inspector.doctor.diagnose(server=False))
        assert [one for one in found if one["repairable"]] == [one.as_dict() for one in expected]
        assert {one.kind for one in expected} == {"dangling", "orphan"}
        before = veredus.everything()
        veredus.do("doctor --repair").refused(2, "--yes", "Repair 2 findings?")
        assert veredus.everything() == before
        repaired = veredus.do("doctor --repair -y --json")
        assert (repaired.code, repaired.err) == (0, "repaired 2\n")
        assert [one for one in repaired.json if one["repairable"]] == []
        assert b"[b]ghost" not in veredus.redis.lrange("asynq:{mail}:pending", 0, -1)
        assert veredus.redis.zrange("asynq:{mail}:archived", 0, -1) == [b"dead"]
        veredus.redis.rpush("asynq:{mail}:pending", "ghost")
        assert veredus.do("doctor --repair -y").out.startswith("repaired 1\n")
        assert "repaired" not in veredus.do("doctor --repair").out, "nothing to ask, nothing to repair"
    finally:
        veredus.redis.config_set("save", "")


def test_the_doctor_minds_the_server(veredus: Command) -> None:
    shown = veredus.do("doctor")
    assert shown.code == 1
    assert "bad  no append-only file and no snapshots: a restart loses every task -> CONFIG SET" in shown.out


# Completion, demo, help.


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o nosort -F"), ("zsh", "#compdef"), ("fish", "--arguments")]
)
def test_completion_scripts(veredus: Command, shell: str, part: str) -> None:
    shown = veredus.do(f"completion {shell}")
    assert shown.code == 0
    assert part in shown.out
    assert f"_VEREDUS_COMPLETE={shell}_complete" in shown.out
    assert re.search(r"\bveredus\b", shown.out), "the program itself"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("veredus ta", "task"),
        ("veredus task resch", "reschedule"),
        ("veredus stats --js", "--json"),
        ("veredus x y", ""),
    ],
)
def test_completion_completes(shop: Shop, words: str, found: str) -> None:
    number = str(len(words.split()) - 1)
    environment = shop.environment(_VEREDUS_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
    program = Path(sys.executable).with_name("veredus")
    ended = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ([f"plain,{found}"] if found else [])


@pytest.mark.parametrize("code", [0, 1])
def test_the_demo_says_whether_something_was_lost(veredus: Command, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr("veredus.demo.show.run_demo", lambda: code)
    assert veredus.do("demo").code == code


def _tree(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from _tree(below, (*path, name))


@pytest.mark.parametrize("group", [[], ["queue"], ["task"], ["gateway"], ["cron"], ["worker"]])
def test_a_group_without_a_command_shows_its_help_and_is_wrong_usage(veredus: Command, group: list[str]) -> None:
    shown = veredus(*group)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == veredus(*group, "--help").out


def test_every_help(veredus: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seen = list(_tree(cli))
    assert len(seen) > 35
    for path in seen:
        shown = veredus(*path, "--help")
        assert (shown.code, shown.err) == (0, ""), path
        lines = shown.out.splitlines()
        assert lines[0].startswith("Usage: "), path
        assert len(lines) <= 45, path
        assert max(map(len, lines)) <= 120, path
        if len(path) == 1:
            assert "Example" in shown.out, path
            assert f"  veredus {path[0]}" in shown.out, path
        if path:
            assert lines[2].strip(), f"{path} says what it does"
        assert veredus(*path, "-h") == shown, path


def test_a_closed_pipe_is_no_error(shop: Shop) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "veredus", "stats"]
    ended = subprocess.run(
        command, env=shop.environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    os.close(writer)
    assert "Traceback" not in ended.stderr
