"""`veredus errors`: what failed, grouped by task type, class and place over all queues."""

from __future__ import annotations

from collections.abc import Callable

import click

from veredus.cli.common import (
    Duration,
    confirm,
    duration_text,
    echo_json,
    facts,
    inspecting,
    json_option,
    progress_bar,
    show,
    text_of,
    when,
)
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.error_groups import ErrorGroupInfo
from veredus.model.info import SECOND, as_datetime

_COLUMNS: list[tuple[str, Callable[[ErrorGroupInfo], object]]] = [
    ("id", lambda one: one.id),
    ("count", lambda one: f"{one.count:,}"),
    ("type", lambda one: one.type),
    ("error", lambda one: f"{one.error_class}: {text_of(one.error.encode('utf-8', 'replace'), 60)}"),
    ("at", lambda one: one.place),
    ("queues", lambda one: ", ".join(one.queues)),
    ("last", lambda one: when(as_datetime(one.last * SECOND))),
]


@click.command("errors")
@click.argument("group", metavar="[GROUP]", required=False)
@click.option("--last", default=86400.0, type=Duration(), help="Errors of this time (default 24h, at most 720h).")
@click.option("-q", "--queue", help="Only this queue.")
@click.option("--type", "task_type", default="", help="Only this type, or a pattern such as email:*.")
@click.option("--run", "verb", flag_value="run", help="Make all tasks of GROUP that failed pending now.")
@click.option("--delete", "verb", flag_value="delete", help="Delete all tasks of GROUP that failed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@inspecting
async def errors(
    inspector: Inspector,
    /,
    group: str | None,
    last: float,
    queue: str | None,
    task_type: str,
    verb: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what failed, grouped by task type, class and place over all queues; run or delete the tasks of a group.

    \b
    Examples:
      veredus errors --last 1h
      veredus errors 5f0c9a7e1b2c
      veredus errors 5f0c9a7e1b2c --run
    """
    if group is None:
        if verb is not None:
            raise ConfigError("GROUP", group, f"with --{verb} the id of one group, as `veredus errors` lists them")
        found = await inspector.errors(last, queue=queue, type=task_type)
        show(found, _COLUMNS, as_json=as_json, empty=f"No task failed in the last {duration_text(last)}.")
        return
    one = await inspector.error_group(group)
    if verb is not None:
        await _change(inspector, one, verb, yes)
        return
    if as_json:
        echo_json(one.as_dict())
        return
    shown = {**one.as_dict(), "queues": ", ".join(one.queues)}
    del shown["series"], shown["span_s"]
    facts(shown.items())
    show(one.series, [("time", lambda row: when(as_datetime(row[0] * SECOND))), ("errors", lambda row: row[1])],
         as_json=False, empty="")  # fmt: skip


async def _change(inspector: Inspector, group: ErrorGroupInfo, verb: str, yes: bool) -> None:
    where = f"{group.error_class} of {group.type} in {', '.join(group.queues)}"
    confirm(f"{verb.capitalize()} all tasks that failed with {where}?", yes)
    apply = inspector.run_errors if verb == "run" else inspector.delete_errors
    with progress_bar(f"{verb} {group.id}") as progress:
        done = await apply(group.id, progress=progress)
    click.echo(f"{verb}: {done.done:,} of {done.total:,} failed tasks")
