"""`veredus task`: list, search, inspect, enqueue and change tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from veredus.cli.common import (
    STATES,
    Duration,
    Instant,
    inspecting,
    json_option,
    plain_app,
    redis_option,
    show,
    text_of,
    when,
)
from veredus.cli.groups import Commands
from veredus.cli.task_bulk import archive_tasks, cancel_tasks, delete_tasks, filters, from_start, run_tasks
from veredus.cli.task_show import show_task
from veredus.cli.task_waiting import waiting_tasks
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.info import TaskInfo

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


@task_group.command("list")
@_queue
@click.option("-s", "--state", required=True, type=click.Choice(STATES), help="The state.")
@click.option("--page", default=1, show_default=True)
@click.option("--size", default=30, show_default=True, help="Tasks per page.")
@filters
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


for _command in (cancel_tasks, run_tasks, archive_tasks, delete_tasks):
    task_group.add_command(_command)


@task_group.command("move")
@_queue
@_id
@click.option("--to", "target", required=True, help="The target queue.")
@from_start
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
@from_start
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
