"""`make matrix`: what ran, what did not and why; nothing that did not run counts as passed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.matrix import cells, pythons
from tools.matrix.__main__ import main, table
from tools.matrix.cells import PER_SERVER, SERVERS, WHOLE, Cell

from tests.support import servers
from tests.support.waiting import until_sync

OURS = "{}.{}".format(*sys.version_info)
ROOT = Path(__file__).parents[2]
TESTS = """
import os, pytest

@pytest.mark.parametrize("server", os.environ["VEREDUS_TEST_SERVERS"].split(","))
def test_on(server): assert server != {breaks!r}

def test_without_a_server(): pass

@pytest.mark.skip(reason="no browser")
def test_page(): pass

@pytest.fixture
def broken():
    yield
    raise OSError("left behind")

def test_whose_end_fails(broken): {ending}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with tests of its own, no Redis 7 and a Python that nobody has."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # pytest starts faster
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nclassifiers = ["{pythons.CLASSIFIER}{OURS[2:]}", "{pythons.CLASSIFIER}99"]\n'
    )
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    (support / "servers.py").write_text(
        "class NoBinary(Exception): pass\n"
        "def binary(name):\n    if name == 'redis7': raise NoBinary('no Redis 7: NOT TESTED')\n"
    )
    write(tmp_path)
    return tmp_path


def write(project: Path, breaks: str = "", ending: str = "pytest.skip('not now')") -> None:
    (project / "tests" / "test_all.py").write_text(TESTS.format(breaks=breaks, ending=ending))


def results(project: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Cell]]:
    code = main([*more, "--json", "--jobs", "0"], project)
    shown = capsys.readouterr()
    assert "%" in shown.err or not more, "progress"
    return code, {cell.name: cell for cell in (Cell(**values) for values in json.loads(shown.out))}


def test_every_cell_is_counted_and_one_that_cannot_run_is_skipped_with_its_reason(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "tests" / "test_all.py").write_text(TESTS.format(breaks="", ending="pass").replace("raise OSError", "#"))
    code, found = results(project, capsys)
    assert code == 0
    whole, per_server = found[f"{OURS}/valkey"], found[f"{OURS}/redis6"]
    assert (whole.part, whole.passed, whole.failed, whole.skipped) == (WHOLE, 3, 0, 1)
    assert (per_server.part, per_server.passed, per_server.failed, per_server.skipped) == (PER_SERVER, 1, 0, 0)
    assert whole.skips == {"no browser": 1}
    missing = found[f"{OURS}/redis7"]
    assert (missing.ran, missing.passed, missing.reason) == (False, 0, "no Redis 7: NOT TESTED")
    assert {found[f"3.99/{server}"].reason for server in SERVERS} == {"Python 3.99 is not installed here"}


def test_a_failure_on_one_server_or_after_a_test_is_told_and_ends_with_1(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, breaks="redis6", ending="pass")
    code, found = results(project, capsys, "--only", OURS)
    assert code == 1
    assert found[f"{OURS}/redis6"].failures == ["tests.test_all::test_on[redis6]"]
    assert found[f"{OURS}/valkey"].failures == ["tests.test_all::test_whose_end_fails"]
    assert found[f"{OURS}/valkey"].passed == 2


def test_tests_that_cannot_even_be_collected_are_a_failure(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests" / "test_all.py").write_text("import nowhere")
    code, found = results(project, capsys)
    assert code == 1
    assert all(found[f"{OURS}/{server}"].failed for server in ("valkey", "redis6"))
    (project / "tests" / "test_all.py").write_text("")
    code, found = results(project, capsys)
    assert code == 1, "no test at all is no pass"
    assert "pytest ended with 5" in found[f"{OURS}/valkey"].failures[0]


def test_stopped_it_ends_the_tests_and_what_they_started(project: Path) -> None:
    (project / "tests" / "test_all.py").write_text(
        "import os, signal, subprocess, sys\n"
        "def test_long():\n"
        "    below = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "    open('started.new', 'w').write(f'{os.getpid()} {below.pid}')\n"
        "    os.rename('started.new', 'started')\n"
        "    signal.pause()\n"
    )
    code = (
        f"import pathlib, tools.matrix.__main__ as matrix; matrix.main(['--jobs', '0'], pathlib.Path({str(project)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True) as matrix:
        until_sync((project / "started").exists, what="the first test")
        pids = [int(pid) for pid in (project / "started").read_text().split()]
        matrix.terminate()
        assert matrix.stderr is not None
        assert matrix.stderr.read().endswith("stopped\n")
    until_sync(lambda: not any(_runs(pid) for pid in pids), what="the end of both")


def _runs(pid: int) -> bool:
    """What ended and was not yet waited for does not run."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return status.stdout.strip()[:1] not in ("", "Z")


def test_nothing_that_could_run_is_no_success(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "redis7"], project) == 2
    assert "SKIPPED: no Redis 7: NOT TESTED" in capsys.readouterr().out
    assert main(["--only", "redis8"], project) == 2
    assert "no such cell" in capsys.readouterr().err


def test_only_takes_a_python_a_server_or_both() -> None:
    def chosen(*only: str) -> list[str]:
        return [cell.name for cell in cells.plan(["3.11", "3.12"], only)]

    assert len(chosen()) == 2 * len(SERVERS)
    assert chosen("redis7") == ["3.11/redis7", "3.12/redis7"]
    assert chosen("3.12/valkey", "3.11/redis6") == ["3.11/redis6", "3.12/valkey"]
    assert chosen("3.12") == [f"3.12/{server}" for server in SERVERS]


def test_a_cell_that_is_narrowed_does_not_call_itself_whole() -> None:
    parts = [cell.part for cell in cells.plan(["3.11"], more=["tests/unit", "-x"])]
    assert parts[:2] == [f"{WHOLE}, only tests/unit -x", f"{PER_SERVER}, only tests/unit -x"]


def test_the_table_says_skipped_where_nothing_ran() -> None:
    skipped = Cell("3.13", "redis6", PER_SERVER, reason="no wheel")
    ran = Cell("3.11", "valkey", WHOLE, ran=True, passed=1234, skipped=2, seconds=90, skips={"no browser": 2})
    failed = Cell("3.11", "redis7", PER_SERVER, ran=True, passed=1, failed=1, failures=["a::b"])
    assert [line.split("  ") for line in table([ran, skipped, failed]).splitlines() if line] == [
        line.split("  ")
        for line in (
            "Python  server     what                       passed  failed  skipped  time",
            "3.11    Valkey 9   whole suite                1,234   0       2        1.5 min  ok",
            "3.13    Redis 6.2  tests that run per server  -       -       -        -        SKIPPED: no wheel",
            "3.11    Redis 7    tests that run per server  1       1       0        0.0 min  FAILED",
            "FAILED 3.11/redis7: a::b",
            "skipped 3.11/valkey: 2 x no browser",
        )
    ]


def test_the_matrix_has_the_servers_of_the_tests_and_the_pythons_of_the_package() -> None:
    assert cells.SERVERS == servers.KNOWN
    assert pythons.claimed(ROOT) == ["3.11", "3.12", "3.13"]
    assert pythons.find(OURS)
    assert pythons.find("3.99") is None


def test_the_servers_under_test_are_chosen_by_name() -> None:
    assert servers.chosen("redis7, valkey") == ("redis7", "valkey")
    for wrong in ("", "redis", "valkey,redis8"):
        with pytest.raises(ValueError, match=r"VEREDUS_TEST_SERVERS=.*expected some of valkey, redis6, redis7"):
            servers.chosen(wrong)


def test_a_redis_7_is_known_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "redis-server"
    monkeypatch.setenv(servers.REDIS7_VARIABLE, str(program))

    def says(version: str) -> None:
        program.write_text(f"#!/bin/sh\necho {version} sha=0:0\n")
        program.chmod(0o755)

    says("Redis server v=7.2.4")
    assert servers.binary("redis7") == str(program)
    for other in ("Redis server v=6.2.14", "Redis server v=8.0.0", "Valkey server v=7.2.4"):
        says(other)
        with pytest.raises(servers.NoBinary, match="Redis 7 was NOT TESTED"):
            servers.binary("redis7")
    with pytest.raises(ValueError, match="no such server: 'redis'"):
        servers.binary("redis")
