"""`veredus worker`: run the tasks of an app; list, quiet and stop the workers that run anywhere."""

from __future__ import annotations

from typing import Any

import click

from veredus.cli.common import Duration
from veredus.cli.groups import StartGroup
from veredus.cli.loading import app_to_run
from veredus.cli.logs import LEVELS
from veredus.cli.stoppable import stoppable
from veredus.cli.worker_control import list_workers, quiet, stop
from veredus.worker.config import cores


class Auto(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """A whole number, or `auto` for one per core."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return cores()
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number or 'auto'", param, ctx)


@click.group(cls=StartGroup, starts="start", subcommand_metavar="MODULE:APP | COMMAND")
def worker() -> None:
    """Run the tasks of an app; list, quiet and stop the workers that run anywhere.

    \b
    Examples:
      veredus worker shop:app                          # the same as: veredus worker start shop:app
      veredus worker shop:app -q critical=6,default=1 --concurrency 50 --processes auto
      veredus worker list
      veredus worker stop 5f0c

    All options of a worker: veredus worker start --help
    """


worker.add_command(list_workers)
worker.add_command(quiet)
worker.add_command(stop)


@worker.command("start", context_settings={"auto_envvar_prefix": "VEREDUS"})
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--redis", "redis_url", metavar="URL", envvar="VEREDUS_REDIS_URL", help="URL of Redis, such as redis://host:6379/0."
)
@click.option(
    "-q",
    "--queues",
    metavar="NAMES",
    help="Queues and weights: critical=6,default=1 (default: all).",
)
@click.option("--strict", is_flag=True, help="Serve the queue with most weight first.")
@click.option("-c", "--concurrency", type=int, help="Slots per process (default 100).")
@click.option("--threads", type=int, help="Slots for handlers in threads (default 32).")
@click.option(
    "--process-pool", type=int, help='Slots for handlers with run_in="process" (default cores / --processes).'
)
@click.option("-p", "--processes", type=Auto(), help="Worker processes, or auto: one per core (default 1).")
@click.option("--burst", is_flag=True, help="Stop when the queues are empty.")
@click.option("--scheduler/--no-scheduler", default=None, help="Fire the app's schedules (default: yes).")
@click.option("--max-tasks", type=int, help="Replace a process after this many tasks.")
@click.option("--max-memory", type=int, metavar="MB", help="Replace a process that uses more memory.")
@click.option("--shutdown-timeout", type=float, metavar="SECONDS", help="Time for running handlers (default 25).")
@click.option("--lease", type=float, metavar="SECONDS", help="Lease time without a heartbeat (default 12).")
@click.option("--max-crashes", type=int, help="Archive a task after this many worker crashes (default 3; 0: never).")
@click.option("--max-run-age", type=Duration(), help="Archive durable tasks older than this.")
@click.option("--retry-while-running", is_flag=True, help="Retry at the deadline even if the handler still runs.")
@click.option(
    "--no-share-with-go", "share_with_go", flag_value=False, default=None, help="Do not leave tasks for Go servers."
)
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve /metrics, /healthz and /readyz (on 127.0.0.1).")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@stoppable
def start(
    app: str, redis_url: str | None, metrics: str | None, log_level: str, log_format: str, **settings: Any
) -> int:
    """Run the tasks of an app until stopped.

    \b
    SIGTERM, SIGINT  finish running tasks (up to the shutdown timeout), then requeue the rest; twice: requeue at once
    SIGTSTP          take no new tasks, keep running

    \b
    Examples:
      veredus worker shop:app
      veredus worker shop:app -q critical=6,default=1 --concurrency 50 --processes auto
      veredus worker shop:app --redis redis://cache:6379/1 --burst

    Every option can also be set in the environment: VEREDUS_QUEUES, VEREDUS_CONCURRENCY, ...
    """
    loaded = app_to_run(app, redis_url, log_level, log_format)
    given = {name: value for name, value in settings.items() if value is not None}
    if metrics is not None:
        from veredus.telemetry.worker_metrics import metrics_for

        given["companions"] = [metrics_for(metrics, given)]
    return loaded.worker(**given).run()
