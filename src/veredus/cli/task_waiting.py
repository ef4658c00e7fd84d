"""`veredus task waiting`: what durable tasks wait for."""

from __future__ import annotations

import click

from veredus.cli.common import inspecting, json_option, show, text_of, when
from veredus.inspector.inspector import Inspector
from veredus.model.info import as_datetime


@click.command("waiting")
@click.option("-q", "--queue", help="Only this queue.")
@json_option
@inspecting
async def waiting_tasks(inspector: Inspector, queue: str | None, as_json: bool) -> None:
    """List what durable tasks wait for, the longest wait first. `veredus task list`, `run`, `archive` and `delete` take
    such a reason as --waiting.

    \b
    Example:
      veredus task waiting -q orders
    """
    columns = [
        ("queue", lambda x: x.queue),
        ("waits for", lambda x: text_of(x.reason, 60)),
        ("tasks", lambda x: f"{x.count:,}"),
        ("oldest since", lambda x: when(as_datetime(x.since_ms * 1_000_000))),
        ("oldest", lambda x: x.task_id),
    ]
    rows = [row for name in ([queue] if queue else await inspector.queues()) for row in await inspector.waiting(name)]
    show(rows, columns, as_json=as_json, empty="No durable task waits.")
