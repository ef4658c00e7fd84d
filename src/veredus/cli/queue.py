"""`veredus queue`: list, inspect, pause, resume and remove queues."""

from __future__ import annotations

import click

from veredus.cli.common import confirm, console, echo_json, facts, inspecting, json_option, progress_bar, show
from veredus.errors import QueueNotEmpty
from veredus.inspector.inspector import Inspector
from veredus.model.info import QueueInfo

_names = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@click.group("queue")
def queue_group() -> None:
    """Look at queues, pause, resume and remove them.

    \b
    Examples:
      veredus queue list
      veredus queue pause mail
      veredus queue history mail --days 30
    """


@queue_group.command("list")
@json_option
@inspecting
async def list_queues(inspector: Inspector, as_json: bool) -> None:
    """All queues."""
    columns = [
        ("queue", lambda q: q.queue),
        ("state", lambda q: "paused" if q.paused else "running"),
        ("size", lambda q: f"{q.size:,}"),
        ("pending", lambda q: f"{q.pending:,}"),
        ("active", lambda q: f"{q.active:,}"),
        ("latency", lambda q: f"{q.latency_ns / 1e6:,.0f} ms"),
    ]
    show(await inspector.stats(), columns, as_json=as_json, empty="No queue yet: enqueue a task first.")


@queue_group.command("inspect")
@_names
@json_option
@inspecting
async def inspect_queues(inspector: Inspector, names: tuple[str, ...], as_json: bool) -> None:
    """Everything about some queues, with an estimate of their memory."""
    queues = [await inspector.queue(name, memory=True) for name in names]
    if as_json:
        echo_json([queue.as_dict() for queue in queues])
        return
    for queue in queues:
        _show(queue)


def _show(queue: QueueInfo) -> None:
    values = queue.as_dict()
    facts(
        (name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value)
        for name, value in values.items()
    )
    console().print()


@queue_group.command("history")
@_names
@click.option("-x", "--days", default=10, show_default=True, help="How many days back.")
@json_option
@inspecting
async def history(inspector: Inspector, names: tuple[str, ...], days: int, as_json: bool) -> None:
    """Processed and failed per day (UTC), the newest first."""
    rows = [row for name in names for row in await inspector.history(name, days)]
    columns = [
        ("queue", lambda d: d.queue),
        ("date", lambda d: d.date),
        ("processed", lambda d: f"{d.processed:,}"),
        ("failed", lambda d: f"{d.failed:,}"),
        ("error rate", lambda d: f"{d.failed / d.processed:.1%}" if d.processed else ""),
    ]
    show(rows, columns, as_json=as_json, empty="No days.")


@queue_group.command("pause")
@_names
@inspecting
async def pause(inspector: Inspector, names: tuple[str, ...]) -> None:
    """Workers take no more tasks from these queues; tasks can still be enqueued."""
    for name in names:
        click.echo(f"{name}: {'paused' if await inspector.pause(name) else 'was paused already'}")


@queue_group.command("resume")
@_names
@inspecting
async def resume(inspector: Inspector, names: tuple[str, ...]) -> None:
    """Workers go on with these queues."""
    for name in names:
        click.echo(f"{name}: {'resumed' if await inspector.resume(name) else 'was not paused'}")


@queue_group.command("remove")
@_names
@click.option("-f", "--force", is_flag=True, help="Also if it has tasks (but not while some are running).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@inspecting
async def remove(inspector: Inspector, names: tuple[str, ...], force: bool, yes: bool) -> None:
    """Delete queues with everything in them."""
    for name in names:
        size = (await inspector.queue(name)).size
        confirm(f"Delete the queue {name!r} with {size:,} tasks?", yes)
        try:
            with progress_bar(f"removing {name}") as progress:
                await inspector.delete_queue(name, force=force, progress=progress)
        except QueueNotEmpty as exc:
            raise QueueNotEmpty(name, exc.problem.replace("force=True", "--force")) from None
        click.echo(f"{name}: removed")
