"""`veredus gateway`: serve clients, list nodes and sessions, run a load test."""

from __future__ import annotations

import asyncio
import functools
import json
import urllib.error
import urllib.request
from dataclasses import fields
from typing import Any, NamedTuple

import click

from veredus.cli.common import echo_json, json_option, plain_app, redis_option, show
from veredus.cli.entry import loaded
from veredus.cli.gateway_bench import bench
from veredus.cli.gateway_ending import disconnect, revoke
from veredus.cli.groups import StartGroup
from veredus.cli.loading import app_to_run
from veredus.cli.logs import LEVELS
from veredus.cli.stoppable import stoppable
from veredus.errors import ConfigError, VeredusError
from veredus.gateway.config import GatewayConfig
from veredus.store.store import Store


@click.group(cls=StartGroup, name="gateway", starts="serve", subcommand_metavar="MODULE:APP | COMMAND")
def gateway_group() -> None:
    """Serve clients over WebSocket and QUIC: ordered, acknowledged, resumable.

    \b
    Examples:
      veredus gateway shop:app
      veredus gateway shop:app --ws 0.0.0.0:8765 --quic 0.0.0.0:8766 --processes 2
      veredus gateway sessions --json
      veredus gateway disconnect --user ada --reason spam
      veredus gateway bench --clients 50 --cut 0.2
    """
    if click.get_current_context().invoked_subcommand != serve.name:
        loaded()


SHOWN = ("ws", "quic", "http", "processes", "certificate", "key", "http_token", "session_ttl", "policy", "drain")
"""Settings shown in the help. The others are hidden options."""


class Setting(NamedTuple):
    """One setting of the gateway as a command line option."""

    name: str
    kind: type
    default: object
    text: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"VEREDUS_{self.name.upper()}"

    def as_dict(self) -> dict[str, object]:
        return {"option": self.flag, "variable": self.variable, "default": self.default, "meaning": self.text}


def _settings() -> list[Setting]:
    """All settings that have a help text."""
    found = []
    for one in fields(GatewayConfig):
        if one.metadata["help"]:
            kind = one.metadata["kind"] or (type(one.default) if isinstance(one.default, int | float) else str)
            default = "" if one.default in ((), None) else str(one.default) if kind is str else one.default
            found.append(Setting(one.name, kind, default, one.metadata["help"]))
    return found


def _options(function: Any) -> Any:
    for one in reversed(_settings()):
        text = one.text.rstrip(".") + (f" (default {one.default})." if one.default != "" else ".")
        function = click.option(
            one.flag, one.name, type=one.kind, envvar=one.variable, help=text, hidden=one.name not in SHOWN
        )(function)
    return function


@gateway_group.command("serve", hidden=True)
@click.argument("app", metavar="MODULE:APP")
@redis_option
@_options
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@stoppable
def serve(app: str, redis_url: str | None, log_level: str, log_format: str, **settings: Any) -> int:
    """Serve the clients of an app until stopped.

    \b
    SIGTERM, SIGINT  move the clients to other gateways (over --drain seconds), then stop; twice: stop at once

    There are more options, and each has an environment variable: see veredus gateway settings.

    \b
    Example:
      veredus gateway shop:app --ws 0.0.0.0:8765
    """
    loaded = app_to_run(app, redis_url, log_level, log_format)
    given = {name: value for name, value in settings.items() if value is not None}
    return loaded.gateway(**given).run()


gateway_group.add_command(bench)
gateway_group.add_command(disconnect)
gateway_group.add_command(revoke)


@gateway_group.command("sessions")
@redis_option
@json_option
@click.option("--user", help="Only sessions of this user.")
@click.option("--group", help="Only sessions in this group.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of sessions.")
@click.option("--token", envvar="VEREDUS_HTTP_TOKEN", default="", help="Bearer token for the push API of the nodes.")
def sessions(redis_url: str | None, as_json: bool, user: str | None, group: str | None, limit: int, token: str) -> None:
    """List sessions with the figures that their nodes report.

    \b
    Example:
      veredus gateway sessions --json
      veredus gateway sessions --group lobby
    """
    if user and group:
        raise ConfigError("group", group, "either --user or --group")
    rows = asyncio.run(_sessions(redis_url, user, group, limit, token))
    columns = [
        ("session", lambda row: row["session_id"]),
        ("user", lambda row: row["user"]),
        ("state", lambda row: row["state"]),
        ("node", lambda row: row["node"]),
        ("queue", lambda row: row["queue_size"]),
        ("pending", lambda row: row["pending_count"]),
        ("max", lambda row: row["max_queue_size"]),
        ("next", lambda row: row["next_expected_seq"]),
        ("sent", lambda row: row["last_sent_seq"]),
        ("acked", lambda row: row["last_acked_seq"]),
        ("stopped", lambda row: row["stopped"]),
    ]
    if as_json:
        echo_json(rows)
    else:
        show(rows, columns, as_json=False, empty="no sessions")


@gateway_group.command("settings")
@json_option
def settings(as_json: bool) -> None:
    """List every setting of the gateway: option, environment variable and default.

    \b
    Example:
      veredus gateway settings
    """
    columns = [
        ("option", lambda row: row.flag),
        ("variable", lambda row: row.variable),
        ("default", lambda row: row.default),
        ("", lambda row: row.text),
    ]
    show(_settings(), columns, as_json=as_json, empty="none")


@gateway_group.command("nodes")
@redis_option
@json_option
def nodes(redis_url: str | None, as_json: bool) -> None:
    """List gateway processes with their addresses and load.

    \b
    Example:
      veredus gateway nodes --json
    """
    rows = asyncio.run(_nodes(redis_url))
    if as_json:
        echo_json(rows)
        return
    names = ("node", "alive", "age", "ws", "quic", "http", "connections", "sessions", "open_requests")
    show(rows, [(name, functools.partial(_field, name)) for name in names], as_json=False, empty="no nodes")


def _field(name: str, row: dict[str, Any]) -> object:
    return row.get(name, "")


async def _nodes(redis_url: str | None) -> list[dict[str, Any]]:
    store = Store(plain_app(redis_url).open_redis("veredus-cli"))
    try:
        found = await store.nodes.nodes()
    finally:
        await store.close()
    return [{"node": node, "alive": one.alive, "age": round(one.age, 1), **one.info} for node, one in found.items()]


async def _sessions(
    redis_url: str | None, user: str | None, group: str | None, limit: int, token: str
) -> list[dict[str, Any]]:
    """Sessions from Redis, with live figures from the nodes of attached ones."""
    store = Store(plain_app(redis_url).open_redis("veredus-cli"))
    try:
        if user:
            known = (await store.sessions.sessions_of(user))[:limit]
        elif group:
            known = await store.sessions.members(group, limit=limit)
        else:
            known = await store.sessions.listing(limit=limit)
        live: dict[str, dict[str, Any]] = {}
        for node, one in (await store.nodes.nodes()).items():
            address = one.info.get("http")
            if one.alive and address and any(row.node == node for row in known):
                url = f"{'https' if one.info.get('http_tls') else 'http'}://{address}"
                for row in await asyncio.to_thread(_ask, url, token):
                    live[str(row["session_id"])] = row
    finally:
        await store.close()
    return [_merged(row, live.get(row.sid, {})) for row in known]


def _merged(row: Any, live: dict[str, Any]) -> dict[str, Any]:
    """Without live figures the queue counts as stopped: all unacknowledged messages are in the log."""
    return {
        "session_id": row.sid,
        "queue_size": 0,
        "pending_count": row.pending,
        "max_queue_size": 0,
        "next_expected_seq": row.floor + 1,
        "last_sent_seq": row.floor,
        "last_acked_seq": row.floor,
        "stopped": True,
        "user": row.user,
        "state": row.state,
        "node": row.node if row.state == "attached" else "",
        "top": row.top,
        "floor": row.floor,
        "bytes": row.bytes,
        "open_requests": row.open_requests,
        "groups": list(row.groups),
        **live,
    }


def _ask(url: str, token: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(f"{url}/sessions")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            rows: list[dict[str, Any]] = json.load(answer)
            return rows
    except urllib.error.HTTPError as exc:
        if exc.code == 401:
            raise VeredusError(f"the node at {url} requires a token: --token or VEREDUS_HTTP_TOKEN") from None
        return []
    except (OSError, ValueError):
        return []  # the node does not answer: show what Redis knows
