"""`veredus group`, `veredus server` and `veredus cron`: who collects, who works, what is planned."""

from __future__ import annotations

import click

from veredus.cli.common import echo_json, facts, inspecting, json_option, show, text_of, when
from veredus.cli.groups import Commands
from veredus.inspector.inspector import Inspector
from veredus.model.info import as_datetime


def _at(nanoseconds: int) -> str:
    return "never" if nanoseconds <= 0 else when(as_datetime(nanoseconds))


@click.group("group", cls=Commands, aliases={"ls": "list"})
def group_group() -> None:
    """Groups of tasks that wait to become one.

    \b
    Example:
      veredus group list -q mail
    """


@group_group.command("list")
@click.option("-q", "--queue", required=True, help="The queue.")
@json_option
@inspecting
async def list_groups(inspector: Inspector, queue: str, as_json: bool) -> None:
    """The groups of a queue with their sizes.

    \b
    Example:
      veredus group list -q mail
    """
    columns = [("group", lambda g: g.group), ("size", lambda g: f"{g.size:,}")]
    show(
        await inspector.groups(queue), columns, as_json=as_json, empty=f"No group has waiting tasks in queue {queue!r}."
    )


@click.group("server", cls=Commands, aliases={"ls": "list"})
def server_group() -> None:
    """Worker processes, Veredus's and Go's.

    \b
    Example:
      veredus server list
    """


@server_group.command("list")
@json_option
@inspecting
async def list_servers(inspector: Inspector, as_json: bool) -> None:
    """Every worker process that lives, and how busy it is.

    \b
    Example:
      veredus server list
    """
    columns = [
        ("host", lambda s: s.host),
        ("pid", lambda s: s.pid),
        ("status", lambda s: s.status),
        ("busy", lambda s: f"{len(s.active_workers)}/{s.concurrency}"),
        ("queues", lambda s: ", ".join(f"{name}={weight}" for name, weight in s.queues.items())),
        ("started", lambda s: _at(s.started_ns)),
    ]
    show(
        await inspector.servers(),
        columns,
        as_json=as_json,
        empty="No worker is running. Start one: veredus worker module:app",
    )


@server_group.command("inspect")
@click.argument("names", metavar="SERVER...", nargs=-1, required=True)
@json_option
@inspecting
async def inspect_servers(inspector: Inspector, names: tuple[str, ...], as_json: bool) -> None:
    """One worker process with what it works on: SERVER is its id, the beginning of it, or host:pid.

    \b
    Example:
      veredus server inspect 5f0c...
    """
    servers = [await inspector.server(name) for name in names]
    if as_json:
        echo_json([server.as_dict() for server in servers])
        return
    for server in servers:
        facts((name, value) for name, value in server.as_dict().items() if name != "active_workers")
        columns = [
            ("task", lambda w: w.task_id),
            ("type", lambda w: w.task_type),
            ("queue", lambda w: w.queue),
            ("started", lambda w: _at(w.started_ns)),
        ]
        show(server.active_workers, columns, as_json=False, empty="It has nothing to do.")


@click.group("cron", cls=Commands, aliases={"ls": "list"})
def cron_group() -> None:
    """Schedules and when they fired.

    \b
    Examples:
      veredus cron list
      veredus cron history 7e0c3f0e-...
    """


@cron_group.command("list")
@json_option
@inspecting
async def list_entries(inspector: Inspector, as_json: bool) -> None:
    """Every schedule of every scheduler that lives.

    \b
    Example:
      veredus cron list
    """
    columns = [
        ("id", lambda e: e.id),
        ("spec", lambda e: e.spec),
        ("type", lambda e: e.task_type),
        ("payload", lambda e: text_of(e.task_payload, 40)),
        ("options", lambda e: " ".join(e.opts)),
        ("next", lambda e: _at(e.next_ns)),
        ("last", lambda e: _at(e.prev_ns)),
    ]
    show(await inspector.scheduler_entries(), columns, as_json=as_json, empty="No scheduler is running.")


@cron_group.command("history")
@click.argument("entries", metavar="ENTRY_ID...", nargs=-1, required=True)
@click.option("--page", default=1, show_default=True)
@click.option("--size", default=30, show_default=True)
@json_option
@inspecting
async def history(inspector: Inspector, entries: tuple[str, ...], page: int, size: int, as_json: bool) -> None:
    """When schedules fired, the newest first.

    \b
    Example:
      veredus cron history 5f0c...
    """
    rows = [event for entry in entries for event in await inspector.scheduler_events(entry, page=page, size=size)]
    columns = [("task", lambda e: e.task_id), ("enqueued", lambda e: _at(e.enqueued_ns))]
    show(rows, columns, as_json=as_json, empty="It has not fired yet.")
