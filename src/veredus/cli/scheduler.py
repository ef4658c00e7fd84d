"""`veredus scheduler`: fire the schedules of an app without running its tasks."""

from __future__ import annotations

import click

from veredus.cli.loading import app_to_run
from veredus.cli.logs import LEVELS
from veredus.cli.stoppable import stoppable


@click.command(context_settings={"auto_envvar_prefix": "VEREDUS"})
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--redis", "redis_url", metavar="URL", envvar="VEREDUS_REDIS_URL", help="URL of Redis, such as redis://host:6379/0."
)
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@stoppable
def scheduler(app: str, redis_url: str | None, log_level: str, log_format: str) -> int:
    """Enqueue the tasks of an app's schedules until SIGTERM or SIGINT.

    Every worker does this too, unless it runs with --no-scheduler. You can run several: one is the leader, another
    takes over within seconds if it dies, and each tick is enqueued exactly once.

    \b
    Examples:
      veredus scheduler shop:app
      veredus scheduler shop:app --redis redis://cache:6379/1
    """
    loaded = app_to_run(app, redis_url, log_level, log_format)
    return loaded.scheduler().run()
