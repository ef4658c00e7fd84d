"""`veredus emit`: tell durable tasks that something has happened."""

from __future__ import annotations

import asyncio
import json

import click

from veredus.cli.common import Duration, echo_json, json_option, plain_app, redis_option
from veredus.errors import ConfigError
from veredus.model.durable import EVENT_TTL


@click.command("emit")
@click.argument("event")
@click.argument("payload", required=False)
@click.option("--ttl", type=Duration(), default=EVENT_TTL, help="How long the event is kept (default: 7 days).")
@redis_option
@json_option
def emit(redis_url: str | None, as_json: bool, event: str, payload: str | None, ttl: float) -> None:
    """Emit an event for durable tasks that wait for it, now or later. The first event of a name counts. PAYLOAD is JSON
    (default: true).

    \b
    Examples:
      veredus emit approved:7
      veredus emit approved:7 '{"by": "ada"}' --ttl 24h
    """
    try:
        value = True if payload is None else json.loads(payload)
    except ValueError:
        raise ConfigError("payload", payload, 'JSON, such as \'{"by": "ada"}\'') from None

    async def run() -> bool:
        async with plain_app(redis_url) as app:
            return await app.emit(event, value, ttl=ttl)

    is_first = asyncio.run(run())
    if as_json:
        echo_json({"event": event, "first": is_first})
    else:
        click.echo(f"emitted {event}" if is_first else f"{event} was emitted before: that one counts")
