"""`veredus metrics`: a Prometheus exporter for all queues."""

from __future__ import annotations

import asyncio
import logging

import click

from veredus.cli.common import plain_app, redis_option
from veredus.cli.logs import configure
from veredus.errors import VeredusError
from veredus.telemetry.probe_server import host_and_port


@click.command()
@redis_option
@click.option(
    "--listen", metavar="[HOST:]PORT", default="127.0.0.1:9876", show_default=True, help="Address to listen on."
)
@click.option("--memory", is_flag=True, help="Also estimate the memory of each queue (reads a sample per scrape).")
def metrics(redis_url: str | None, listen: str, memory: bool) -> None:
    """Serve /metrics, /healthz and /readyz for all queues, with Asynq's metric names. Stop it with Ctrl-C.

    Workers serve their own metrics (durations, lateness, recoveries): veredus worker --metrics PORT.

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
    asyncio.run(serve(plain_app(redis_url), port, host=host, memory=memory))
