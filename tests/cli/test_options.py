"""Every option of every command is named by a test of that command; those that many commands share do what they say."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.support import Command
from veredus.cli.gateway import Setting, _settings
from veredus.cli.main import cli, main
from veredus.gateway.config import GatewayConfig
from veredus.gateway.gateway import Gateway
from veredus.process.signals import SIGNALS

TESTS = Path(__file__).parents[1]


def commands(command: click.Command, path: tuple[str, ...], ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, (*path, name), click.Context(inner, info_name=name, parent=ctx))


COMMANDS = dict(commands(cli, (), click.Context(cli)))


def long_options(command: click.Command) -> list[str]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    return [name for one in options for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]


NOWHERE = "unix:///nowhere/s"
LINES = {
    "worker start": "shop:app", "scheduler": "shop:app", "gateway serve": "shop:app", "metrics": None, "dash": None,
    "dev": None, "gateway bench": None, "task enqueue": "-t a -l x", "task list": "-q mail -s pending",
    "task show": "-q mail -i x", "task run": "-q mail -i x", "task archive": "-q mail -i x",
    "task delete": "-q mail -i x", "task move": "-q mail -i x --to other", "task edit": "-q mail -i x -l 1",
    "task reschedule": "-q mail -i x --in 5", "task cancel": "x", "group list": "-q mail",
    "queue release": "mail x", "server inspect": "x", "gateway disconnect": "--user ada",
    "gateway revoke": "--user ada", "cron run": "x --app shop:app",
}  # fmt: skip
"""What a command needs besides --redis; None where another test runs it with --redis against a server of its own."""


EXCEPTIONS = {("gateway serve", setting.flag) for setting in _settings()}
"""Options that no test names: they are made from GatewayConfig, and every one of them is tried below."""
EXCEPTIONS |= {(path, "--redis") for path in COMMANDS if LINES.get(path, "") is not None}
"""Tried below with every command, but for those that have a test of their own."""


def test_every_long_option_is_named_by_a_test_that_names_its_command_too() -> None:
    texts = [set(re.findall(r"[\w-]+", path.read_text())) for path in TESTS.rglob("*.py") if path != Path(__file__)]

    def spoken(path: str) -> set[str]:
        return set(path.split()) - {"serve", "start"}  # `veredus gateway shop:app` serves

    unnamed = [
        (path, option)
        for path, command in COMMANDS.items()
        for option in long_options(command)
        if (path, option) not in EXCEPTIONS
        if not any(spoken(path) | {option} <= words for words in texts)
    ]
    assert unnamed == []
    assert len(COMMANDS) > 50
    known = {(path, option) for path, command in COMMANDS.items() for option in long_options(command)}
    assert {one for one in EXCEPTIONS if one[1] != "--redis"} <= known, "an exception for what is gone"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `shop` that commands in this process find."""
    (tmp_path / "shop.py").write_text("from veredus import App\napp = App()\napp.schedule('@daily', app.call('x'))")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if "--redis" in long_options(command)])
def test_the_server_that_is_named_counts_not_the_one_of_the_environment(
    veredus: Command, path: str, shop: None
) -> None:
    if (rest := LINES.get(path, _required(COMMANDS[path]))) is None:
        return
    before = [signal.getsignal(number) for number in SIGNALS]
    ended = veredus(*path.split(), *shlex.split(rest), "--redis", NOWHERE)
    assert ended.code == 3, ended
    assert "/nowhere/s" in ended.err.splitlines()[-1]
    assert [signal.getsignal(number) for number in SIGNALS] == before, "this process goes on after the command"


def _required(command: click.Command) -> str:
    """The arguments of a command that has no others to be given."""
    return " ".join("mail" for one in command.params if isinstance(one, click.Argument) and one.required)


SAMPLES: dict[str, Any] = {
    "ws": "127.0.0.1:8123", "quic": "127.0.0.1:8124", "http": "127.0.0.1:8125", "policy": "close",
    "path": "/elsewhere", "certificate": "a.crt", "key": "a.key", "http_token": "a-token-of-sixteen",
    "origins": "https://a.example,https://b.example", "warn_share": 0.5, "max_frame": 70_000, "http_tls": "off",
    "address_connections": 7, "address_handshakes": 7.5, "address_sessions": 7.5, "trusted_proxies": "10.0.0.0/8,::1",
}  # fmt: skip


@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize("setting", _settings(), ids=lambda setting: setting.name)
def test_every_setting_of_the_gateway_is_an_option_and_a_variable(
    setting: Setting, way: str, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = SAMPLES.get(setting.name) or (setting.default + 1 if isinstance(setting.default, int | float) else "")
    made: list[GatewayConfig] = []

    def run(gateway: Gateway) -> int:
        made.append(gateway.config)
        return 0

    monkeypatch.setattr(Gateway, "run", run)
    line = ["gateway", "shop:app"]
    for name, sample in [(setting.name, value), *_companions(setting.name)]:
        if way == "option":
            line += ["--" + name.replace("_", "-"), str(sample)]
        else:
            monkeypatch.setenv(f"VEREDUS_{name.upper()}", str(sample))
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 0
    found = getattr(made[0], setting.name)
    written = ",".join(found) if isinstance(found, tuple) and not hasattr(found, "port") else str(found)
    assert written == str(value)
    assert found != next(one.default for one in fields(GatewayConfig) if one.name == setting.name)


def _companions(name: str) -> list[tuple[str, str]]:
    """Settings that make no sense alone."""
    return {"certificate": [("key", "a.key")], "key": [("certificate", "a.crt")]}.get(name, [])
