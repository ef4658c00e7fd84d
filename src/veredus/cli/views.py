"""`veredus group`, `veredus server` and `veredus cron`: groups, worker processes and schedules."""

from __future__ import annotations

import asyncio

import click

from veredus.cli.common import echo_json, facts, inspecting, json_option, redis_option, show, text_of, when
from veredus.cli.groups import Commands
from veredus.cli.loading import load_app
from veredus.cli.logs import show_server
from veredus.cli.worker_control import show_workers
from veredus.errors import ScheduleNotFound
from veredus.inspector.inspector import Inspector
from veredus.model.info import as_datetime


def _at(nanoseconds: int) -> str:
    return "never" if nanoseconds <= 0 else when(as_datetime(nanoseconds))


@click.group("group", cls=Commands, aliases={"ls": "list"})
def group_group() -> None:
    """List groups of tasks that wait for aggregation.

    \b
    Example:
      veredus group list -q mail
    """


@group_group.command("list")
@click.option("-q", "--queue", required=True, help="The queue.")
@json_option
@inspecting
async def list_groups(inspector: Inspector, queue: str, as_json: bool) -> None:
    """List the groups of a queue with their sizes.

    \b
    Example:
      veredus group list -q mail
    """
    columns = [("group", lambda g: g.group), ("size", lambda g: f"{g.size:,}")]
    show(await inspector.groups(queue), columns, as_json=as_json, empty=f"No group of queue {queue!r} has tasks.")


@click.group("server", cls=Commands, aliases={"ls": "list"})
def server_group() -> None:
    """List worker processes, Python and Go.

    \b
    Example:
      veredus server list
    """


@server_group.command("list")
@json_option
@inspecting
async def list_servers(inspector: Inspector, as_json: bool) -> None:
    """List live worker processes and their load: the same as `veredus worker list`.

    \b
    Example:
      veredus server list
    """
    show_workers(await inspector.servers(), as_json=as_json)


@server_group.command("inspect")
@click.argument("names", metavar="SERVER...", nargs=-1, required=True)
@json_option
@inspecting
async def inspect_servers(inspector: Inspector, names: tuple[str, ...], as_json: bool) -> None:
    """Show worker processes with their running tasks. SERVER is an id, a unique prefix of one, or host:pid.

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
        show(server.active_workers, columns, as_json=False, empty="It is idle.")


@click.group("cron", cls=Commands, aliases={"ls": "list"})
def cron_group() -> None:
    """List schedules and when they fired; pause, resume and run them.

    \b
    Examples:
      veredus cron list
      veredus cron pause 7e0c3f0e-...
      veredus cron run reports.daily --app shop:app
      veredus cron history 7e0c3f0e-...
    """


@cron_group.command("list")
@json_option
@inspecting
async def list_entries(inspector: Inspector, as_json: bool) -> None:
    """List the schedules of all live schedulers.

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
        ("paused", lambda e: "yes" if e.paused else ""),
    ]
    show(await inspector.scheduler_entries(), columns, as_json=as_json, empty="No scheduler is running.")


@cron_group.command("history")
@click.argument("entries", metavar="ENTRY_ID...", nargs=-1, required=True)
@click.option("--page", default=1, show_default=True)
@click.option("--size", default=30, show_default=True)
@json_option
@inspecting
async def history(inspector: Inspector, entries: tuple[str, ...], page: int, size: int, as_json: bool) -> None:
    """List when schedules fired, the newest event first.

    \b
    Example:
      veredus cron history 5f0c...
    """
    rows = [event for entry in entries for event in await inspector.scheduler_events(entry, page=page, size=size)]
    columns = [("task", lambda e: e.task_id), ("enqueued", lambda e: _at(e.enqueued_ns))]
    show(rows, columns, as_json=as_json, empty="It has not fired yet.")


@cron_group.command("pause")
@click.argument("entries", metavar="ENTRY_ID...", nargs=-1, required=True)
@inspecting
async def pause(inspector: Inspector, entries: tuple[str, ...]) -> None:
    """Let the ticks of schedules pass until they are resumed. They are not caught up later.

    All schedulers must be of this version: an older one that leads fires them all the same. Schedules of Go's
    schedulers cannot be paused.

    \b
    Example:
      veredus cron pause 7e0c3f0e-...
    """
    for entry in entries:
        click.echo(f"{entry}: {'paused' if await inspector.pause_schedule(entry) else 'already paused'}")


@cron_group.command("resume")
@click.argument("entries", metavar="ENTRY_ID...", nargs=-1, required=True)
@inspecting
async def resume(inspector: Inspector, entries: tuple[str, ...]) -> None:
    """Fire schedules again, from their next tick.

    \b
    Example:
      veredus cron resume 7e0c3f0e-...
    """
    for entry in entries:
        click.echo(f"{entry}: {'resumed' if await inspector.resume_schedule(entry) else 'not paused'}")


@cron_group.command("run")
@click.argument("names", metavar="ENTRY...", nargs=-1, required=True)
@click.option(
    "--app",
    "path",
    metavar="MODULE:APP",
    envvar="VEREDUS_APP",
    show_envvar=True,
    required=True,
    help="The app with the schedules.",
)
@redis_option
def run(names: tuple[str, ...], path: str, redis_url: str | None) -> None:
    """Enqueue the tasks of schedules now, beside their ticks. ENTRY is an id, or the type of its task.

    It needs the app, which has the options of the task. A paused schedule can be run, too.

    \b
    Example:
      veredus cron run reports.daily --app shop:app
    """
    app = load_app(path)
    if redis_url:
        app.server.use(redis_url)
    show_server(app)
    chosen = []
    for name in names:
        fitting = [one for one in app.schedules.entries.values() if name in (one.id, one.call.type)]
        if not fitting:
            raise ScheduleNotFound(name, known=[one.call.type for one in app.schedules.entries.values()])
        chosen += fitting

    async def send() -> None:
        async with app:
            for entry in chosen:
                handle = await app.send(entry.call)
                click.echo(f"{entry.call.type}: {handle.id}{'' if handle.created else ' was there already'}")

    asyncio.run(send())
