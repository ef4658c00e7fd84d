"""`veredus top`: live view of queues and workers."""

from __future__ import annotations

import asyncio
import time

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from veredus.cli.common import STATES, console, inspecting, plain
from veredus.inspector.inspector import Inspector
from veredus.model.info import QueueInfo, ServerInfo


@click.command()
@click.option("--refresh", default=1.0, show_default=True, help="Seconds between two updates.")
@click.option("--once", is_flag=True, help="Print once and exit.")
@inspecting
async def top(inspector: Inspector, refresh: float, once: bool) -> None:
    """Watch queues and workers. Stop with Ctrl-C.

    \b
    Example:
      veredus top --refresh 0.5
    """
    before: dict[str, tuple[float, int]] = {}
    out = console()
    if once:
        out.print(_screen(await inspector.stats(), await inspector.servers(), before))
        return
    try:
        with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
            while True:
                live.update(_screen(await inspector.stats(), await inspector.servers(), before), refresh=True)
                await asyncio.sleep(max(0.2, refresh))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return


def _screen(queues: list[QueueInfo], servers: list[ServerInfo], before: dict[str, tuple[float, int]]) -> Group:
    table = Table(title="queues", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("queue", *STATES, "latency", "per second", "failed today"):
        table.add_column(name, justify="left" if name == "queue" else "right", min_width=5)
    for queue in queues:
        numbers = [_number(getattr(queue, state), state) for state in STATES]
        rate = _rate(queue, before)
        label = plain(queue.queue + (" (paused)" if queue.paused else ""))
        label.stylize("yellow" if queue.paused else "bold")
        table.add_row(label, *numbers, f"{queue.latency_ns / 1e6:,.0f} ms", rate, f"{queue.failed:,}")
    workers = Table(title="workers", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("process", "status", "busy", "queues"):
        workers.add_column(name)
    for server in servers:
        served = ", ".join(f"{name}={weight}" for name, weight in server.queues.items())
        busy = f"{len(server.active_workers)}/{server.concurrency}"
        workers.add_row(*map(plain, (f"{server.host}:{server.pid}", server.status, busy, served)))
    return Group(table, Text(), workers if servers else Text("no worker is running", style="yellow"))


def _number(value: int, state: str) -> Text:
    style = {"retry": "yellow", "archived": "red", "active": "green"}.get(state, "") if value else "dim"
    return Text(f"{value:,}", style=style)


def _rate(queue: QueueInfo, before: dict[str, tuple[float, int]]) -> str:
    """Tasks per second since the last update."""
    now = time.monotonic()
    last = before.get(queue.queue)
    before[queue.queue] = (now, queue.processed_total)
    if last is None or now <= last[0]:
        return ""
    return f"{max(0, queue.processed_total - last[1]) / (now - last[0]):,.0f}"
