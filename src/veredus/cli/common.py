"""Shared by the commands: the connection, tables or JSON, progress bars, confirmation."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from veredus.app import App
from veredus.cli.logs import show_server
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.duration import parse_duration
from veredus.model.options import seconds

P = ParamSpec("P")
T = TypeVar("T")

STATES = ("active", "pending", "aggregating", "scheduled", "retry", "archived", "completed")


def redis_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--redis",
        "redis_url",
        metavar="URL",
        envvar="VEREDUS_REDIS_URL",
        help="URL of Redis (default: as App() finds it).",
    )(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def inspecting(
    function: Callable[Concatenate[Inspector, P], Awaitable[T]],
) -> Callable[Concatenate[str | None, P], T]:
    """Pass an inspector for the server given by --redis to a command, with the `redact` of the app in VEREDUS_APP."""

    @functools.wraps(function)
    def command(redis_url: str | None, *args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T:
            app = chosen_app(redis_url)
            redis = app.open_redis("veredus-cli")
            async with Inspector(redis, archive=app.archive, redact=app.redact) as inspector:
                return await function(inspector, *args, **kwargs)

        return asyncio.run(run())

    return redis_option(command)


def chosen_app(redis_url: str | None) -> App:
    """The app that VEREDUS_APP names, for its server and its `redact`, or one without tasks. With --redis it is on
    that server."""
    path = os.environ.get("VEREDUS_APP")
    if not path:
        return plain_app(redis_url)
    from veredus.cli.loading import load_app

    app = load_app(path)
    if redis_url:
        app.use(redis_url)
    show_server(app)
    return app


def plain_app(redis_url: str | None) -> App:
    """An app without tasks, on the server of --redis or the one that every app would use."""
    app = App(redis_url) if redis_url else App()
    show_server(app)
    return app


def console() -> Console:
    """Colours on a terminal, plain text in a pipe."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def show(
    rows: Iterable[Any], columns: Sequence[tuple[str, Callable[[Any], object]]], *, as_json: bool, empty: str
) -> None:
    """Print rows as a table, or their fields as JSON."""
    rows = list(rows)
    if as_json:
        echo_json([row.as_dict() for row in rows])
        return
    out = console()
    if not rows:
        out.print(empty)
        return
    table = Table(box=SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, header_style="bold")
    for name, _ in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[plain(str(value(row)).replace("\n", " ")) for _, value in columns])
    out.print(table)


def plain(text: str) -> Text:
    """Untrusted text: brackets are not markup, and control characters are removed."""
    return Text("".join(c if c.isprintable() or c == "\n" else " " for c in text))


def echo_json(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    click.echo(text.encode("utf-8", "backslashreplace").decode())  # names that are not UTF-8 are printed as \udc..


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line."""
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in pairs:
        table.add_row(Text(name, style="bold"), plain(str(value)))
    out.print(table)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, so that stdout can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda done, total: None
        return
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("--yes", "missing", f"--yes, because there is no terminal to ask on: {question}")
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # asyncio's handler would only record the first Ctrl-C
    try:
        click.confirm(question, abort=True)
    finally:
        signal.signal(signal.SIGINT, before)


def text_of(data: bytes | str, most: int = 80) -> str:
    """For a table, in one line: text, escaped where it is no UTF-8."""
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = repr(data)[2:-1]
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def duration_text(seconds: float) -> str:
    """A duration for people: `340 ms`, `2.5 s`, `12 min`, `6 h`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 0.001)):
        if seconds >= length * (2 if length > 1 else 1):
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def when(instant: datetime | None) -> str:
    if instant is None:
        return ""
    try:
        instant = instant.astimezone()
    except OverflowError:  # the first or last day of the calendar
        pass
    return instant.isoformat(" ")[:19]


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Seconds, or a duration such as 90s, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            try:
                number = parse_duration(str(value)) / 1e9
            except ValueError as exc:
                self.fail(str(exc), param, ctx)
        try:
            return seconds("duration", number)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """An RFC 3339 time with its zone, such as 2026-11-16T09:30:00Z."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-16T09:30:00Z", param, ctx)
        if found.tzinfo is None:
            self.fail(f"{value!r} has no time zone: write 2026-11-16T09:30:00Z or +01:00", param, ctx)
        return found
