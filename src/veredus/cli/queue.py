"""`veredus queue`: list, inspect, pause, close and remove queues; order keys and limits."""

from __future__ import annotations

from collections.abc import Callable

import click

from veredus.cli.common import confirm, console, echo_json, facts, inspecting, json_option, progress_bar, show
from veredus.cli.groups import Commands
from veredus.errors import QueueNotEmpty
from veredus.inspector.inspector import Inspector
from veredus.model.info import QueueInfo

_names = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@click.group("queue", cls=Commands, aliases={"ls": "list", "unpause": "resume", "rm": "remove", "delete": "remove"})
def queue_group() -> None:
    """List, inspect, pause, close and remove queues.

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
    """List all queues.

    \b
    Example:
      veredus queue list --json
    """
    columns: list[tuple[str, Callable[[QueueInfo], object]]] = [
        ("queue", lambda q: q.queue),
        ("state", lambda q: "paused" if q.paused else "running"),
        ("size", lambda q: f"{q.size:,}"),
        ("pending", lambda q: f"{q.pending:,}"),
        ("active", lambda q: f"{q.active:,}"),
        ("latency", lambda q: f"{q.latency_ns / 1e6:,.0f} ms"),
    ]
    queues = await inspector.stats()
    if inspector.is_cluster and not as_json:
        nodes = {q.queue: ", ".join(n.address for n in await inspector.cluster_nodes(q.queue)) for q in queues}
        columns += [("slot", lambda q: inspector.cluster_slot(q.queue)), ("nodes", lambda q: nodes[q.queue])]
    show(queues, columns, as_json=as_json, empty="No queue yet: enqueue a task first.")


@queue_group.command("inspect")
@_names
@json_option
@inspecting
async def inspect_queues(inspector: Inspector, names: tuple[str, ...], as_json: bool) -> None:
    """Show all numbers of queues, with an estimate of their memory.

    \b
    Example:
      veredus queue inspect mail
    """
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
@click.option("-x", "--days", default=10, show_default=True, help="Number of days.")
@json_option
@inspecting
async def history(inspector: Inspector, names: tuple[str, ...], days: int, as_json: bool) -> None:
    """Show processed and failed tasks per day (UTC), the newest day first.

    \b
    Example:
      veredus queue history mail --days 30
    """
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
    """Stop workers from taking tasks of these queues. Tasks can still be enqueued.

    \b
    Example:
      veredus queue pause mail reports
    """
    for name in names:
        click.echo(f"{name}: {'paused' if await inspector.pause(name) else 'already paused'}")


@queue_group.command("resume")
@_names
@inspecting
async def resume(inspector: Inspector, names: tuple[str, ...]) -> None:
    """Let workers take tasks of these queues again.

    \b
    Example:
      veredus queue resume mail reports
    """
    for name in names:
        click.echo(f"{name}: {'resumed' if await inspector.resume(name) else 'was not paused'}")


@queue_group.command("close")
@_names
@inspecting
async def close(inspector: Inspector, names: tuple[str, ...]) -> None:
    """Refuse new tasks from Veredus clients. Existing tasks still run, and Go clients ignore this.

    \b
    Example:
      veredus queue close mail
    """
    for name in names:
        click.echo(f"{name}: {'closed' if await inspector.close_queue(name) else 'already closed'}")


@queue_group.command("open")
@_names
@inspecting
async def open_queue(inspector: Inspector, names: tuple[str, ...]) -> None:
    """Accept new tasks again.

    \b
    Example:
      veredus queue open mail
    """
    for name in names:
        click.echo(f"{name}: {'open' if await inspector.open_queue(name) else 'was not closed'}")


@queue_group.command("remove")
@_names
@click.option("-f", "--force", is_flag=True, help="Also delete queues that have tasks (but not running ones).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@inspecting
async def remove(inspector: Inspector, names: tuple[str, ...], force: bool, yes: bool) -> None:
    """Delete queues and everything in them.

    \b
    Example:
      veredus queue remove mail --force
    """
    for name in names:
        size = (await inspector.queue(name)).size
        confirm(f"Delete the queue {name!r} with {size:,} tasks?", yes)
        try:
            with progress_bar(f"removing {name}") as progress:
                await inspector.delete_queue(name, force=force, progress=progress)
        except QueueNotEmpty as exc:
            raise QueueNotEmpty(name, exc.problem.replace("force=True", "--force")) from None
        click.echo(f"{name}: removed")


@queue_group.command("order-keys")
@click.argument("name", metavar="QUEUE")
@click.option("--held", is_flag=True, help="Only order keys that an archived task holds up.")
@click.option("--limit", default=100, show_default=True, help="Maximum number of order keys.")
@json_option
@inspecting
async def list_order_keys(inspector: Inspector, name: str, held: bool, limit: int, as_json: bool) -> None:
    """List order keys that have tasks, the longest first, and the task whose turn it is.

    \b
    Example:
      veredus queue order-keys mail --held
    """
    columns = [
        ("order key", lambda one: one.order_key),
        ("tasks", lambda one: f"{one.size:,}"),
        ("first", lambda one: one.first),
        ("state", lambda one: "holds up the rest" if one.held else one.state or "gone"),
    ]
    empty = f"No order key is held up in queue {name!r}." if held else f"No task of queue {name!r} has an order key."
    show(await inspector.order_keys(name, held=held, limit=limit), columns, as_json=as_json, empty=empty)


@queue_group.command("release")
@click.argument("name", metavar="QUEUE")
@click.argument("order_keys", metavar="ORDER_KEY...", nargs=-1, required=True)
@inspecting
async def release(inspector: Inspector, name: str, order_keys: tuple[str, ...]) -> None:
    """Let the tasks behind an archived task run. That task stays archived.

    \b
    Example:
      veredus queue release mail account:7
    """
    for order_key in order_keys:
        task_id = await inspector.release_order_key(name, order_key)
        click.echo(f"{order_key}: released, without task {task_id}")


@queue_group.command("limits")
@click.argument("name", metavar="QUEUE")
@click.option("--remove", "scopes", metavar="LIMIT", multiple=True, help="Remove this limit, such as task:mail.send.")
@json_option
@inspecting
async def limits(inspector: Inspector, name: str, scopes: tuple[str, ...], as_json: bool) -> None:
    """Show the limits of a queue, how much of each is in use, and the limit keys that tasks wait for.

    \b
    Example:
      veredus queue limits mail
    """
    for scope in scopes:
        await inspector.remove_limit(name, scope)
    columns = [
        ("limit", lambda row: row.scope),
        ("at once", lambda row: row.concurrency or ""),
        ("rate", lambda row: row.rate),
        ("running", lambda row: f"{row.running:,}"),
        ("started", lambda row: f"{row.begun:,}" if row.rate else ""),
        ("waiting", lambda row: f"{row.waiting:,}"),
    ]
    show(await inspector.limits(name), columns, as_json=as_json, empty=f"Queue {name!r} has no limits.")
