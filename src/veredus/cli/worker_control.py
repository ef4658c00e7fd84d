"""`veredus worker list`, `quiet` and `stop`."""

from __future__ import annotations

from typing import Any

import click

from veredus.cli.common import echo_json, inspecting, json_option, show, when
from veredus.inspector.inspector import Inspector
from veredus.model.info import ServerInfo, as_datetime

WAIT = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the worker to react; 0: only leave the request.",
)


def show_workers(workers: list[ServerInfo], *, as_json: bool) -> None:
    columns: list[tuple[str, Any]] = [
        ("id", lambda s: s.id[:8]),
        ("host", lambda s: s.host),
        ("pid", lambda s: s.pid),
        ("status", lambda s: s.status),
        ("busy", lambda s: f"{len(s.active_workers)}/{s.concurrency}"),
        ("queues", lambda s: ", ".join(f"{name}={weight}" for name, weight in s.queues.items())),
        ("started", lambda s: when(as_datetime(s.started_ns)) or "never"),
        ("version", lambda s: s.version),
        ("memory", lambda s: f"{s.memory_mb} MB" if s.memory_mb else ""),
    ]
    show(workers, columns, as_json=as_json, empty="No worker is running. Start one: veredus worker module:app")


@click.command("list")
@json_option
@inspecting
async def list_workers(inspector: Inspector, as_json: bool) -> None:
    """List live worker processes with their load, version and memory. Go's servers show no version.

    \b
    Example:
      veredus worker list
    """
    show_workers(await inspector.servers(), as_json=as_json)


@click.command("quiet")
@click.argument("names", metavar="WORKER...", nargs=-1, required=True)
@WAIT
@json_option
@inspecting
async def quiet(inspector: Inspector, names: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Let workers take no more tasks; they keep running, as after SIGTSTP. WORKER is an id, a unique prefix of one, or
    host:pid.

    A worker reads that with its next heartbeat, on whatever machine it runs. Go's servers take no requests.

    \b
    Examples:
      veredus worker quiet 5f0c
      veredus worker quiet web-1:4711 web-2:4712
    """
    _tell([await inspector.quiet_worker(name, wait=wait) for name in names], "takes no more tasks; running", as_json)


@click.command("stop")
@click.argument("names", metavar="WORKER...", nargs=-1, required=True)
@WAIT
@json_option
@inspecting
async def stop(inspector: Inspector, names: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Let workers finish their running tasks and stop, as after SIGTERM. WORKER is an id, a unique prefix of one, or
    host:pid.

    A process manager may start them again: systemd does with Restart=always. Go's servers take no requests.

    \b
    Examples:
      veredus worker stop 5f0c
      veredus worker stop web-1:4711 --json
    """
    _tell([await inspector.stop_worker(name, wait=wait) for name in names], "stops; running", as_json)


def _tell(workers: list[ServerInfo], reaction: str, as_json: bool) -> None:
    if as_json:
        echo_json([one.as_dict() for one in workers])
        return
    for one in workers:
        states = {"active": "asked", "stopped": f"{reaction}: {len(one.active_workers)}", "closed": "stopped"}
        click.echo(f"{one.host}:{one.pid} {one.id}: {states.get(one.status, one.status)}")
