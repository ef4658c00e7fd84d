"""What the commands for people share: the connection, tables or JSON, progress, questions before destroying."""

from __future__ import annotations

import asyncio
import functools
import json
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
        help="The server (default: as App() finds it).",
    )(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="JSON for programs instead of a table.")(function)


def inspecting(
    function: Callable[Concatenate[Inspector, P], Awaitable[T]],
) -> Callable[Concatenate[str | None, P], T]:
    """A command that gets an inspector for the server given by --redis."""

    @functools.wraps(function)
    def command(redis_url: str | None, *args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T:
            app = App(redis_url) if redis_url else App()
            async with Inspector(app.open_redis("veredus-cli"), archive=app.archive) as inspector:
                return await function(inspector, *args, **kwargs)

        return asyncio.run(run())

    return redis_option(command)


def console() -> Console:
    """Colours on a terminal, plain text in a pipe."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def show(
    rows: Iterable[Any], columns: Sequence[tuple[str, Callable[[Any], object]]], *, as_json: bool, empty: str
) -> None:
    """A table for people, or the rows' own fields as JSON."""
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
    """Somebody else's text as it is: brackets are no markup, and no escape code gets through."""
    return Text("".join(c if c.isprintable() or c == "\n" else " " for c in text))


def echo_json(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    click.echo(text.encode("utf-8", "backslashreplace").decode())  # names that are no UTF-8, as \udc..


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """One thing, line by line."""
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in pairs:
        table.add_row(Text(name, style="bold"), plain(str(value)))
    out.print(table)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, so that what a command prints can still be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda done, total: None
        return
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def confirm(question: str, yes: bool) -> None:
    """Ask before destroying; without a terminal only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("--yes", "missing", f"--yes, since nobody can be asked here: {question}")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's would only note the first Ctrl-C
    try:
        click.confirm(question, abort=True)
    finally:
        signal.signal(signal.SIGINT, before)


def text_of(data: bytes, most: int = 80) -> str:
    """Bytes for a table: as text where they are text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = repr(data)[2:-1]
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def when(instant: datetime | None) -> str:
    if instant is None:
        return ""
    try:
        instant = instant.astimezone()
    except OverflowError:  # the first or the last day that there is
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
    """An RFC 3339 instant with its zone, such as 2026-11-16T09:30:00Z."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no instant such as 2026-11-16T09:30:00Z", param, ctx)
        if found.tzinfo is None:
            self.fail(f"{value!r} has no time zone: write 2026-11-16T09:30:00Z or +01:00", param, ctx)
        return found
