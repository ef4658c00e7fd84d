"""`veredus dash`: queues, tasks and workers in the browser."""

from __future__ import annotations

import socket

import click

from veredus.cli.common import chosen_app, redis_option
from veredus.errors import VeredusError
from veredus.model.hosts import is_loopback


@click.command()
@redis_option
@click.option(
    "--host", envvar="VEREDUS_DASH_HOST", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option("--port", envvar="VEREDUS_DASH_PORT", type=click.IntRange(0, 65535), default=8787, show_default=True)
@click.option("--token", envvar="VEREDUS_DASH_TOKEN", help="Secret for logging in (default: a random one).")
@click.option(
    "--viewer-token",
    envvar="VEREDUS_DASH_VIEWER_TOKEN",
    help="A second secret: no payloads, no changes.",
)
@click.option("--read-only", is_flag=True, envvar="VEREDUS_DASH_READ_ONLY", help="Refuse all changes.")
@click.option("--origin", "origins", multiple=True, help="The address that browsers use, behind a proxy.")
@click.option("--refresh", default=1.0, show_default=True, help="Seconds between two updates of an open page.")
@click.option("--open", "browse", is_flag=True, help="Open it in the browser.")
def dash(
    redis_url: str | None,
    host: str,
    port: int,
    token: str | None,
    viewer_token: str | None,
    read_only: bool,
    origins: tuple[str, ...],
    refresh: float,
    browse: bool,
) -> None:
    """Serve the dashboard, by default for this machine only. Stop it with Ctrl-C.

    \b
    Examples:
      veredus dash
      veredus dash --redis redis://cache:6379/1 --read-only
      VEREDUS_DASH_TOKEN=... veredus dash --host 0.0.0.0 --port 8787
    """
    try:
        from veredus.dashboard.config import DashboardConfig
        from veredus.dashboard.dashboard import Dashboard
        from veredus.dashboard.server import DashboardServer
    except ModuleNotFoundError as exc:
        raise VeredusError(f"{exc.name} is missing: pip install 'veredus[dash]'") from None
    config = DashboardConfig.make(
        token=token,
        viewer_token=viewer_token,
        read_only=read_only,
        refresh=refresh,
        origins=origins,
        hosts=(host, socket.gethostname()),
    )
    app = chosen_app(redis_url)
    server = DashboardServer(Dashboard(app, config), host, port)
    address = server.login_address if config.generated else server.address
    click.echo(f"dashboard{' (read-only)' if read_only else ''}: {address}")
    if not config.generated:
        click.echo("log in with the given token")
    if not is_loopback(host):
        click.echo("warning: other machines can reach it without TLS; put a TLS proxy in front of it", err=True)
    if browse:
        click.launch(server.login_address)
    server.run()
