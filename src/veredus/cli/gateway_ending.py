"""`veredus gateway disconnect` and `veredus gateway revoke`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import click

from veredus.app import App
from veredus.cli.common import Instant, echo_json, json_option, plain_app, redis_option


@click.command("disconnect")
@redis_option
@json_option
@click.option("--session", help="This session.")
@click.option("--user", help="All sessions of this user.")
@click.option("--reason", default="", help="Reason sent to the clients.")
def disconnect(redis_url: str | None, as_json: bool, session: str | None, user: str | None, reason: str) -> None:
    """End a session or all sessions of a user, connected or not. Clients get close code 4504 and the reason.

    \b
    Examples:
      veredus gateway disconnect --session p0a3-V3xLq8 --reason "too many messages"
      veredus gateway disconnect --user ada
    """
    _end(redis_url, as_json, lambda app: app.disconnect(session=session, user=user, reason=reason))


@click.command("revoke")
@redis_option
@json_option
@click.option("--user", required=True, help="The user.")
@click.option("--before", type=Instant(), help="Tokens issued before, such as 2026-11-16T09:30:00Z (default: now).")
def revoke(redis_url: str | None, as_json: bool, user: str, before: datetime | None) -> None:
    """Refuse tokens of a user that were issued until now, on all gateways, and end sessions that use one. Clients get
    close code 4501.

    \b
    Examples:
      veredus gateway revoke --user ada
      veredus gateway revoke --user ada --before 2026-11-16T09:30:00Z
    """
    _end(redis_url, as_json, lambda app: app.revoke(user=user, before=before))


def _end(redis_url: str | None, as_json: bool, act: Callable[[App], Coroutine[Any, Any, int]]) -> None:
    async def run() -> int:
        async with plain_app(redis_url) as app:
            return await act(app)

    ended = asyncio.run(run())
    if as_json:
        echo_json({"ended": ended})
    else:
        click.echo(f"ended {ended} session{'' if ended == 1 else 's'}")
