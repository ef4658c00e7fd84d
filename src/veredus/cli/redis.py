"""`veredus redis`: run, inspect and stop the embedded server."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from veredus import embedded
from veredus.embedded import EmbeddedServer
from veredus.embedded.folder import Folder


@click.group("redis", invoke_without_command=True)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Data folder of the server. Default: $VEREDUS_DATA, else that of the project you are in.",
)
@click.pass_context
def redis_group(context: click.Context, data: Path | None) -> None:
    """Run a real Redis or Valkey server on this machine, without installing or configuring one.

    Programs without a Redis URL start this server when they need it, share it among all processes of the project, and
    stop it a few minutes after the last one has exited. Run it here to see its log or to keep it running. Ctrl-C stops
    it and keeps its data.

    \b
    Examples:
      veredus redis                      # in the foreground, until Ctrl-C
      veredus redis status               # is one running, and where?
      veredus redis --data ./data stop   # stop the server of another folder
    """
    context.obj = data
    if context.invoked_subcommand is None:
        context.exit(embedded.run_foreground(data, announce=_announce))


@redis_group.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status_command(context: click.Context, as_json: bool) -> None:
    """Show whether the embedded server runs, and where. Never starts it.

    Exits with 0 if it runs, else with 1.

    \b
    Example:
      veredus redis status --json | jq -r .url
    """
    data: Path | None = context.obj
    server = embedded.status(data)
    if as_json:
        facts = asdict(server) if server else {"data": str(Folder.at(data).path)}
        click.echo(json.dumps({"running": server is not None, **facts}))
    elif server is not None:
        click.echo(server.describe())
        click.echo(server.url)
    else:
        click.echo(f"no embedded server is running in {Folder.at(data).path}")
    context.exit(0 if server else 1)


@redis_group.command("stop")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds to wait.")
@click.pass_context
def stop_command(context: click.Context, timeout: float) -> None:
    """Stop the embedded server and keep its data. The next program that needs it starts it again.

    \b
    Example:
      veredus redis stop
    """
    data: Path | None = context.obj
    server = embedded.status(data)
    if embedded.stop(data, timeout) and server is not None:
        click.echo(f"stopped: {server.describe()}")
    else:
        click.echo(f"no embedded server is running in {Folder.at(data).path}")


def _announce(server: EmbeddedServer) -> None:
    click.echo(f"{server.product} {server.version} ({server.binary})")
    click.echo(f"data in {server.data}")
    click.echo(f"socket  {server.url}")
    click.echo("")
    click.echo("Programs of this user without a Redis URL find it if they use the same data folder.")
    click.echo("For other programs:")
    click.echo(f"  export VEREDUS_REDIS_URL={shlex.quote(server.url)}")
    click.echo("")
