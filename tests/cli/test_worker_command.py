"""`veredus worker`: bad input is one clear line and a documented exit code; help has examples."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Shop
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, pause_sync, until_sync


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["wroker"], 2, "did you mean 'worker'"),
        (["worker", "shop"], 2, "module:attribute, such as shop:app"),
        (["worker", "nothing:app"], 2, "found no 'nothing'"),
        (["worker", "shop:ap"], 2, "did you mean"),
        (["worker", "shop:not_an_app"], 2, "is a int"),
        (["worker", "broken:app"], 2, "ZeroDivisionError"),
        (["worker", "missing:app"], 2, "no_such_module"),
        (["worker", "exits:app"], 2, "SystemExit"),
        (["worker", "shop:app", "--concurency", "3"], 2, "--concurrency"),
        (["worker", "shop:app", "-c", "0"], 2, "concurrency: got 0, expected a whole number of at least 1"),
        (["worker", "shop:app", "-c", "many"], 2, "many"),
        (["worker", "shop:app", "-p", "some"], 2, "'auto'"),
        (["worker", "shop:app", "-q", "a=x"], 2, "weight of 'a'"),
        (["worker", "shop:app", "-q", ","], 2, "at least one queue"),
        (["worker", "shop:app", "--lease", "-1"], 2, "lease"),
        (["worker", "shop:app", "--lease", "inf"], 2, "lease"),
        (["worker", "shop:app", "--redis", "http://x"], 2, "http"),
        (["worker", "shop:app", "--log-level", "loud"], 2, "loud"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(shop: Shop, args: list[str], code: int, text: str) -> None:
    (shop.folder / "broken.py").write_text("1 / 0")
    (shop.folder / "missing.py").write_text("import no_such_module")
    (shop.folder / "exits.py").write_text("raise SystemExit(0)")
    ended = shop.run(*args)
    assert ended.returncode == code, ended.stderr
    assert text in ended.stderr
    *server, error = ended.stderr.strip().splitlines()
    assert [line.startswith("server: ") for line in server] in ([], [True])  # not if the app itself is wrong
    assert error.startswith("veredus: ")
    assert ended.stdout == ""


def _only_error(ended: subprocess.CompletedProcess[str]) -> str:
    """The last line, after the one that names the server and at most a log line that does."""
    *log, error = ended.stderr.strip().splitlines()
    assert ended.returncode == 3, ended.stderr
    assert error.startswith("veredus: ")
    assert log[0].startswith("server: ")
    assert len(log) <= 2, ended.stderr
    return error


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_unreachable_server_is_one_line_and_exit_code_3(shop: Shop, processes: str) -> None:
    port = free_port()
    ended = shop.run("worker", "shop:app", "--redis", f"redis://127.0.0.1:{port}", "-p", processes)
    assert f"127.0.0.1:{port}" in _only_error(ended)


def test_a_wrong_password_is_exit_code_3(shop: Shop, new_server: Callable[..., RealServer]) -> None:
    server = new_server("--requirepass", "right", port=free_port())
    ended = shop.run("worker", "shop:app", "--redis", f"redis://:wrong@127.0.0.1:{server.port}")
    assert "WRONGPASS" in _only_error(ended)
    assert "wrong" not in ended.stderr


@pytest.mark.parametrize("args", [["--help"], ["worker", "--help"], ["redis", "--help"], ["-h"]])
def test_help_has_an_example(shop: Shop, args: list[str]) -> None:
    ended = shop.run(*args)
    assert ended.returncode == 0
    assert "  veredus worker shop:app" in ended.stdout or "  veredus redis status" in ended.stdout
    if args[0] != "redis" and "worker" not in args:
        assert "Exit codes" in ended.stdout


def test_the_version(shop: Shop) -> None:
    from veredus import __version__

    assert __version__ in shop.run("--version").stdout


def test_no_more_synchronous_handlers_run_at_once_than_there_are_threads(shop: Shop, send: Callable[..., Any]) -> None:
    for _ in range(5):
        send("wait")
    process = shop.start("--threads", "2", "-c", "5")
    until_sync(lambda: len(shop.notes()) >= 2, what="two handlers")
    pause_sync(0.3, proves="the third waits for a thread")
    assert len(shop.notes()) == 2
    (shop.folder / "gate").touch()
    until_sync(lambda: len(shop.notes()) == 5, what="the others")
    process.terminate()
    assert process.wait(PATIENCE) == 0


PROBE = """\
from veredus import App

class Probe(App):
    def worker(self, **given):
        worker = super().worker(**given)
        print(repr({name: getattr(worker.config, name) for name in given}))
        raise SystemExit(0)

app = Probe()
"""


@pytest.mark.parametrize(
    ("args", "setting"),
    [
        ([], "{}"),
        (["--retry-while-running"], "{'retry_while_running': True}"),
        (["--no-share-with-go"], "{'share_with_go': False}"),
        (["--max-crashes", "7"], "{'max_crashes': 7}"),
        (["--max-run-age", "720h"], "{'max_run_age': 2592000.0}"),
    ],
)
def test_options_of_the_command_are_settings_of_the_worker(shop: Shop, args: list[str], setting: str) -> None:
    (shop.folder / "probe.py").write_text(PROBE)
    done = shop.run("worker", "probe:app", *args)
    flags = {"strict", "burst", "retry_while_running"}
    given = {name: value for name, value in ast.literal_eval(done.stdout).items() if value or name not in flags}
    assert repr(given) == setting
