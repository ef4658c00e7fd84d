"""`veredus metrics`: the queues of a server for Prometheus, from a process of its own."""

from __future__ import annotations

import asyncio
import logging

import click

from veredus.app import App
from veredus.cli.common import redis_option
from veredus.cli.logs import configure
from veredus.errors import VeredusError
from veredus.telemetry.endpoint import host_and_port


@click.command()
@redis_option
@click.option("--listen", metavar="[HOST:]PORT", default="127.0.0.1:9876", show_default=True, help="Where to serve.")
@click.option(
    "--memory", is_flag=True, help="Also estimate what each queue takes in Redis (costs a sample per scrape)."
)
def metrics(redis_url: str | None, listen: str, memory: bool) -> None:
    """Serve /metrics, /healthz and /readyz for all queues of a server, under Asynq's metric names; end with Ctrl-C.

    What workers do (durations, lateness, recoveries) they tell themselves: veredus worker --metrics PORT.

    \b
    Examples:
      veredus metrics
      veredus metrics --redis redis://cache:6379/1 --listen 0.0.0.0:9876 --memory
    """
    try:
        from veredus.telemetry.exporter import serve
    except ModuleNotFoundError as exc:
        raise VeredusError(f"{exc.name} is missing: pip install 'veredus[prometheus]'") from None
    configure("info", "text")
    host, port = host_and_port(listen)
    logging.getLogger("veredus").setLevel("INFO")
    asyncio.run(serve(App(redis_url) if redis_url else App(), port, host=host, memory=memory))
