"""`veredus task show`: everything about one task, with its attempts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from veredus.cli.common import echo_json, facts, inspecting, json_option, text_of, when
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.attempts import UNRECORDED, AttemptInfo
from veredus.model.run_info import RunInfo

_WIDTH = 2000
"""Characters of one line of a traceback, at most."""


@click.command("show")
@click.argument("task", metavar="[ID]", required=False)
@click.option("-q", "--queue", help="The queue (default: the one that has the task).")
@click.option("-i", "--id", "task_id", help="The task, instead of ID.")
@json_option
@inspecting
async def show_task(
    inspector: Inspector, /, task: str | None, queue: str | None, task_id: str | None, as_json: bool
) -> None:
    """Show everything about one task: its attempts with their errors, and why it waits.

    \b
    Example:
      veredus task show 5f0c...
    """
    if (task is None) == (task_id is None):
        raise ConfigError("ID", task, "one task, as an argument or with --id")
    name = task or task_id or ""
    if queue is None:
        queue = (await inspector.queues_of(name))[0]
    found, attempts = await inspector.task(queue, name), await inspector.attempts(queue, name)
    waits = await inspector.waits(queue, name)
    run = await inspector.durable_run(queue, name)
    if as_json:
        durable = {} if run is None else {"run": run.as_dict()}
        shown = (
            found.as_dict()
            | {"attempts": [one.as_dict() for one in attempts], "waits": [one.as_dict() for one in waits]}
            | durable
        )
        echo_json(shown | ({"traceback": found.traceback} if found.traceback else {}))
        return
    fields = {**found.as_dict(), "payload": text_of(found.payload, _WIDTH), "result": text_of(found.result, _WIDTH)}
    facts((name, value) for name, value in fields.items() if value not in (None, "", 0, False))
    if run is not None:
        click.echo()
        for line in _run_lines(run):
            click.echo(text_of(line.encode("utf-8", "replace"), _WIDTH))
    for reason in waits:
        click.echo(text_of(f"waits: {reason}".encode("utf-8", "replace"), _WIDTH))
    for one in attempts:
        click.echo()
        for line in _lines(one):
            click.echo(text_of(line.encode("utf-8", "replace"), _WIDTH))
    if found.traceback and not any(one.traceback for one in attempts):  # an earlier version ran them
        click.echo()
        for line in found.traceback.split("\n"):
            click.echo(text_of(line.encode("utf-8", "replace"), _WIDTH))


def _run_lines(run: RunInfo) -> Iterator[str]:
    """The run as a timeline: when each step and wait began, for how long it took, and its children below it."""
    yield f"run {run.mark}" + (f", waits for {run.waiting}" if run.waiting else "")
    for one in run.steps:
        began = f"{datetime.fromtimestamp(one.began_ms / 1000, UTC).astimezone():%m-%d %H:%M:%S.%f}"[:-3]
        took = "" if one.seconds is None else _duration(one.seconds)
        attempt = f" (attempt {one.attempt})" if one.attempt > 1 else ""
        detail = f": {one.detail}" if one.detail else ""
        yield f"  {began}  {took:>9}  {one.outcome:<9}  {one.kind} {one.name}{attempt}{detail}"
        for child in one.children:
            yield f"{'':>31}{child.outcome:<9}  {child.queue}/{child.id}" + (
                f": {child.detail}" if child.detail else ""
            )
        if one.size > len(one.children):
            yield f"{'':>31}... and {one.size - len(one.children):,} more"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _lines(one: AttemptInfo) -> Iterator[str]:
    if one.outcome == UNRECORDED:
        yield f"attempt {one.attempt}: no record. Go or an earlier version of Veredus ran it."
        return
    took = "" if one.seconds is None else f" after {one.seconds:.3f} s"
    yield f"attempt {one.attempt}: {one.outcome}{took}"
    if one.started is not None:
        yield f"  started  {when(one.started)}"
    yield f"  ended    {when(one.ended)}"
    yield f"  worker   {one.worker or 'not one of Veredus'}"
    if one.error or one.error_class:
        yield f"  error    {': '.join(part for part in (one.error_class, ' '.join(one.error.split())) if part)}"
    if one.place:
        yield f"  at       {one.place}"
    for at, text in one.log:
        yield f"  {datetime.fromtimestamp(at, UTC).astimezone():%H:%M:%S}  {text}"
    if one.traceback:
        yield from textwrap.indent(one.traceback, "  ").split("\n")
