"""`veredus task cancel`, `run`, `archive` and `delete`: some tasks by id, or all that match."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from typing import Any

import click

from veredus.cli.common import STATES, confirm, inspecting, progress_bar
from veredus.errors import ArchiveFull, ConfigError, QueueError
from veredus.inspector.inspector import Inspector
from veredus.inspector.search import Query
from veredus.model.task_status import CHILDREN, THEN


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
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


@click.command("cancel")
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
@filters
@inspecting
async def cancel_tasks(
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


from_start = click.option("--from-start", is_flag=True, help="Durable tasks forget what they have done.")


def _one_or_all(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-q", "--queue", required=True, help="The queue."),
        click.option("-i", "--id", "ids", multiple=True, help="A task; may be given several times."),
        click.option("--all", "everything", is_flag=True, help="All tasks of the state that match the filters."),
        click.option("-s", "--state", type=click.Choice(STATES), help="The state, for --all."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
    ):
        function = option(function)
    return filters(function)


@click.command("run")
@_one_or_all
@click.option("--front", is_flag=True, help="Run it next instead of after all other pending tasks.")
@from_start
@inspecting
async def run_tasks(inspector: Inspector, /, front: bool, from_start: bool, **given: Any) -> None:
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


@click.command("archive")
@_one_or_all
@click.option(
    "--drop-excess", is_flag=True, help="With --all: delete the oldest archived tasks if the archive is full."
)
@inspecting
async def archive_tasks(inspector: Inspector, /, drop_excess: bool, **given: Any) -> None:
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


@click.command("delete")
@_one_or_all
@inspecting
async def delete_tasks(inspector: Inspector, /, **given: Any) -> None:
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
