"""`veredus task`: list, search, inspect, enqueue and change tasks."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from veredus.cli.common import (
    STATES,
    Duration,
    Instant,
    confirm,
    inspecting,
    json_option,
    plain_app,
    progress_bar,
    redis_option,
    show,
    text_of,
    when,
)
from veredus.cli.groups import Commands
from veredus.cli.task_show import show_task
from veredus.cli.task_waiting import waiting_tasks
from veredus.errors import ArchiveFull, ConfigError, QueueError
from veredus.inspector.inspector import Inspector
from veredus.inspector.search import Query
from veredus.model.info import TaskInfo
from veredus.model.task_status import CHILDREN, THEN

_queue = click.option("-q", "--queue", required=True, help="The queue.")
_id = click.option("-i", "--id", "task_id", required=True, help="The task.")


@click.group(
    "task",
    cls=Commands,
    aliases={"ls": "list", "inspect": "show", "remove": "delete", "rm": "delete"},
)
def task_group() -> None:
    """List, search, enqueue, run, archive, delete, move and cancel tasks.

    \b
    Examples:
      veredus task list -q mail -s retry
      veredus task list -q mail -s archived --error timeout
      veredus task run -q mail -s archived --all
      veredus task enqueue -t email:send -l '{"user_id": 42}' --in 10m
    """


def _filters(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--type", "task_type", default="", help="Only this type, or a pattern such as email:*."),
        click.option("--payload", "payload_part", default="", help="Only tasks whose payload contains this."),
        click.option("--error", default="", help="Only tasks whose last error contains this."),
        click.option(
            "--waiting", default="", help="Only durable tasks that wait for this, such as 'event approved:*'."
        ),
        click.option("-g", "--group", help="Only this group, for aggregating tasks."),
    ):
        function = option(function)
    return function


@task_group.command("list")
@_queue
@click.option("-s", "--state", required=True, type=click.Choice(STATES), help="The state.")
@click.option("--page", default=1, show_default=True)
@click.option("--size", default=30, show_default=True, help="Tasks per page.")
@_filters
@json_option
@inspecting
async def list_tasks(
    inspector: Inspector,
    queue: str,
    state: str,
    page: int,
    size: int,
    task_type: str,
    payload_part: str,
    error: str,
    waiting: str,
    group: str | None,
    as_json: bool,
) -> None:
    """List tasks of one state: pending ones in the order they will run, others by time.

    \b
    Example:
      veredus task list -q mail -s retry --error timeout
    """
    if min(page, size) < 1:
        raise ConfigError("--page" if page < 1 else "--size", min(page, size), "a number from 1 on")
    if task_type or payload_part or error or waiting:
        found = inspector.search(
            queue, state, type=task_type, payload=payload_part, error=error, waiting=waiting, group=group
        )
        rows = [task async for task in _take(found, size * (page - 1), size)]
    else:
        rows = await inspector.tasks(queue, state, group=group, page=page, size=size)
    columns: list[tuple[str, Callable[[TaskInfo], object]]] = [
        ("id", lambda t: t.id),
        ("type", lambda t: t.type),
        ("payload", lambda t: text_of(t.payload, 60)),
    ]
    if state in ("scheduled", "retry"):
        columns.append(("due", _due))
    if state in ("retry", "archived"):
        columns += [
            ("last error", lambda t: text_of(t.last_error, 60)),
            ("failed at", lambda t: when(t.last_failed_at)),
            ("retried", lambda t: f"{t.retried}/{t.max_retry}"),
        ]
    if state == "completed":
        columns += [("completed", lambda t: when(t.completed_at)), ("result", lambda t: text_of(t.result, 40))]
    show(rows, columns, as_json=as_json, empty=f"No {state} task in queue {queue!r}.")


def _due(task: TaskInfo) -> str:
    return f"waiting for {task.waiting_for}" if task.waiting_for else when(task.next_process_at)


async def _take(found: Any, skip: int, size: int) -> Any:
    seen = 0
    async for task in found:
        seen += 1
        if seen > skip:
            yield task
        if seen >= skip + size:
            return


task_group.add_command(show_task)
task_group.add_command(waiting_tasks)


@task_group.command("enqueue")
@click.option("-t", "--type", "--type-name", "task_type", required=True, help="The task's type.")
@click.option("-l", "--payload", required=True, help="The payload, stored as it is (JSON for most handlers).")
@click.option("-q", "--queue", help="The queue (default: default).")
@click.option("--id", "task_id", help="The task id (default: random).")
@click.option("--retry", "max_retry", type=int, help="Maximum number of retries (default 25).")
@click.option("--timeout", type=Duration(), help="Time limit of one attempt, such as 90s (default 30m).")
@click.option("--deadline", type=Instant(), help="Time limit of all attempts.")
@click.option("--unique", "unique_for", type=Duration(), help="Refuse a second task with this payload for this time.")
@click.option("--at", "--process-at", "at", type=Instant(), help="Due at this time.")
@click.option("--in", "--process-in", "delay", type=Duration(), help="Due after this time.")
@click.option("--retention", type=Duration(), help="Keep the completed task for this time.")
@click.option("--expires", type=Duration(), help="Drop the task if it has not started by then.")
@click.option("--group", help="Add it to this group.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be given several times.")
@redis_option
def enqueue(task_type: str, payload: str, redis_url: str | None, headers: tuple[str, ...], **options: Any) -> None:
    """Enqueue a task of any type.

    \b
    Example:
      veredus task enqueue -t email:send -l '{"user_id": 42}' -q mail --in 10m --header trace=abc
    """
    given = {name: value for name, value in options.items() if value is not None}
    if headers:
        given["headers"] = dict(_pair(header) for header in headers)
    app = plain_app(redis_url)

    async def send() -> None:
        async with app:
            handle = await app.enqueue(task_type, payload.encode(), **given)
        click.echo(f"{handle.id} {handle.state if handle.created else 'not created: an equal task already exists'}")

    asyncio.run(send())


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError("--header", text, "NAME=VALUE")
    return name, value


@task_group.command("cancel")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("-q", "--queue", help="The queue (default: every queue with this id).")
@click.option(
    "--then", type=click.Choice(THEN), default="archive", show_default=True, help="What to do with cancelled tasks."
)
@click.option(
    "--children",
    type=click.Choice(CHILDREN),
    default="cancel",
    show_default=True,
    help="The children of durable tasks.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All running tasks that match, or with --waiting those that wait.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@_filters
@inspecting
async def cancel(
    inspector: Inspector,
    /,
    ids: tuple[str, ...],
    queue: str | None,
    then: str,
    children: str,
    everything: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Cancel tasks before they start or while they run.

    A running task is marked in Redis, so that the cancel survives lost messages and dead workers. Its worker, also a Go
    server, is notified at once.

    \b
    Examples:
      veredus task cancel 7e0c3f0e-... --then delete
      veredus task cancel -q mail --all
      veredus task cancel -q orders --all --waiting 'event approved:*'
    """
    if bool(ids) == everything:
        raise ConfigError("ID", list(ids), "either ids or --all with --queue")
    if everything:
        if queue is None:
            raise ConfigError("--queue", None, "with --all, a queue")
        where = _query(filters)
        await inspector.queue(queue)
        which = "waiting" if where.waiting else "running"
        confirm(f"Cancel the {which} tasks of queue {queue!r}?", yes)
        with progress_bar(f"cancel {which} tasks of {queue}") as progress:
            done = await inspector.cancel_all(
                queue, then=then, children=children, where=None if where == Query() else where, progress=progress
            )
        click.echo(f"cancel: {done.done:,} of {done.total:,} {which} tasks")
        return
    for task_id in ids:
        for name in [queue] if queue is not None else await inspector.queues_of(task_id):
            outcome = await inspector.cancel(name, task_id, then=then, children=children)
            click.echo(f"{task_id}: {outcome}" + (f" (then: {then})" if outcome == "cancelling" else ""))


_from_start = click.option("--from-start", is_flag=True, help="Durable tasks forget what they have done.")


def _one_or_all(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-q", "--queue", required=True, help="The queue."),
        click.option("-i", "--id", "ids", multiple=True, help="A task; may be given several times."),
        click.option("--all", "everything", is_flag=True, help="All tasks of the state that match the filters."),
        click.option("-s", "--state", type=click.Choice(STATES), help="The state, for --all."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
    ):
        function = option(function)
    return _filters(function)


@task_group.command("run")
@_one_or_all
@click.option("--front", is_flag=True, help="Run it next instead of after all other pending tasks.")
@_from_start
@inspecting
async def run(inspector: Inspector, /, front: bool, from_start: bool, **given: Any) -> None:
    """Make scheduled, retry, archived, completed or aggregating tasks pending now. Durable tasks go on after the last
    step that was kept; those that wait look whether their wait is over.

    \b
    Examples:
      veredus task run -q mail -s archived --all
      veredus task run -q orders -s scheduled --all --waiting 'event approved:*'
    """

    async def one(task_id: str) -> None:
        await inspector.run(given["queue"], task_id, front=front, from_start=from_start)

    await _apply(inspector, "run", one, functools.partial(inspector.run_all, from_start=from_start), given)


@task_group.command("archive")
@_one_or_all
@click.option(
    "--drop-excess", is_flag=True, help="With --all: delete the oldest archived tasks if the archive is full."
)
@inspecting
async def archive(inspector: Inspector, /, drop_excess: bool, **given: Any) -> None:
    """Archive tasks, so that they do not run.

    \b
    Example:
      veredus task archive -q mail -s retry --all
    """

    async def one(task_id: str) -> None:
        await inspector.archive(given["queue"], task_id)

    async def everything(*args: Any, **kwargs: Any) -> Any:
        try:
            return await inspector.archive_all(*args, drop_excess=drop_excess, **kwargs)
        except ArchiveFull as exc:
            raise QueueError(str(exc).replace("drop_excess=True", "--drop-excess")) from None

    await _apply(inspector, "archive", one, everything, given)


@task_group.command("delete")
@_one_or_all
@inspecting
async def delete(inspector: Inspector, /, **given: Any) -> None:
    """Delete tasks.

    \b
    Example:
      veredus task delete -q mail -s archived --all
    """

    async def one(task_id: str) -> None:
        await inspector.delete(given["queue"], task_id)

    await _apply(inspector, "delete", one, inspector.delete_all, given)


def _query(given: dict[str, Any]) -> Query:
    return Query(type=given["task_type"], payload=given["payload_part"], error=given["error"], waiting=given["waiting"])


async def _apply(inspector: Inspector, verb: str, one: Any, everything: Any, given: dict[str, Any]) -> None:
    """Apply a verb to ids, or to all tasks of a state with a progress bar. Ctrl-C stops after the current batch."""
    if bool(given["ids"]) == given["everything"]:
        raise ConfigError("--id", given["ids"], "either --id (once or more) or --all with --state")
    if given["ids"]:
        for task_id in given["ids"]:
            await one(task_id)
            click.echo(f"{task_id}: {verb} done")
        return
    queue, state = given["queue"], given["state"]
    if state is None:
        raise ConfigError("--state", None, f"with --all one of {', '.join(STATES)}")
    filters = _query(given)
    where = filters if filters != Query() else None
    await inspector.queue(queue)
    confirm(
        f"{verb.capitalize()} {'all' if where is None else 'all matching'} {state} tasks of queue {queue!r}?",
        given["yes"],
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    with progress_bar(f"{verb} {state} tasks of {queue}") as progress:
        done = await everything(queue, state, group=given["group"], where=where, progress=progress, stop=stop)
    loop.remove_signal_handler(signal.SIGINT)
    text = f"{verb}: {done.done:,} of {done.total:,} {state} tasks"
    click.echo(text + (" (stopped)" if done.stopped else ""))


@task_group.command("move")
@_queue
@_id
@click.option("--to", "target", required=True, help="The target queue.")
@_from_start
@inspecting
async def move(inspector: Inspector, queue: str, task_id: str, target: str, from_start: bool) -> None:
    """Move a task to another queue.

    \b
    Example:
      veredus task move -q mail --id 5f0c... --to slow
    """
    await inspector.move(queue, task_id, target, from_start=from_start)
    click.echo(f"{task_id}: moved from {queue} to {target}")


@task_group.command("reschedule")
@_queue
@_id
@click.option("--at", type=Instant(), help="Due at this time.")
@click.option("--in", "delay", type=Duration(), help="Due after this delay.")
@inspecting
async def reschedule(inspector: Inspector, queue: str, task_id: str, at: datetime | None, delay: float | None) -> None:
    """Change the due time of a task.

    \b
    Example:
      veredus task reschedule -q mail --id 5f0c... --in 10m
    """
    if (at is None) == (delay is None):
        raise ConfigError("--at", None if at is None else str(at), "either --at or --in")
    await inspector.reschedule(queue, task_id, at=at, delay=delay)
    click.echo(f"{task_id}: due {_due(await inspector.task(queue, task_id))}")


@task_group.command("edit")
@_queue
@_id
@click.option("-l", "--payload", required=True, help="The new payload, stored as it is.")
@_from_start
@inspecting
async def edit(inspector: Inspector, queue: str, task_id: str, payload: str, from_start: bool) -> None:
    """Replace the payload of a task that is not running.

    \b
    Example:
      veredus task edit -q mail --id 5f0c... -l '{"user_id": 43}'
    """
    await inspector.edit_payload(queue, task_id, payload.encode(), from_start=from_start)
    click.echo(f"{task_id}: payload replaced")


@task_group.command("leases")
@click.option("-q", "--queue", help="Only this queue.")
@json_option
@inspecting
async def leases(inspector: Inspector, queue: str | None, as_json: bool) -> None:
    """List leases: which worker has which task and until when, the first to expire first.

    \b
    Example:
      veredus task leases
    """
    columns = [
        ("queue", lambda x: x.queue),
        ("task", lambda x: x.task_id),
        ("type", lambda x: x.task_type),
        ("expires in", lambda x: f"{x.seconds_left:.0f} s"),
        ("owner", lambda x: x.owner if x.ours else "another client"),
    ]
    show(await inspector.leases(queue), columns, as_json=as_json, empty="No task is running.")
