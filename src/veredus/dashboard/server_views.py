"""API addresses that read the server, gateway nodes, sessions and their outboxes."""

from __future__ import annotations

import asyncio
from typing import Any

from veredus.dashboard.answers import NotFound
from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.dashboard.read_routes import Reading
from veredus.inspector.health import examine_servers
from veredus.model.info import instant_text
from veredus.store.sessions.outbox import ReadRow
from veredus.store.sessions.sessions import SessionRow

_MILLISECOND = 1_000_000
_LAST = 20
"""Outbox entries shown per session."""


async def server(opened: Opened, form: Form) -> Any:
    """The reply of INFO and the health checks of the server."""
    inspector = opened.inspector
    facts, findings = await asyncio.gather(inspector.redis_info(), examine_servers(inspector.doctor.checkups))
    return {
        "address": opened.redis.address.describe(),
        "cluster": inspector.is_cluster,
        "info": facts,
        "findings": [finding.as_dict() for finding in findings],
    }


async def gateway(opened: Opened, form: Form) -> Any:
    """Gateway nodes with the figures they report, and the number of sessions."""
    nodes, count = await asyncio.gather(opened.nodes.nodes(), opened.sessions.count())
    rows = [{"node": name, "alive": one.alive, "age": round(one.age, 1), **one.info} for name, one in nodes.items()]
    return {"nodes": sorted(rows, key=lambda row: str(row["node"])), "sessions": count}


async def sessions(opened: Opened, form: Form) -> Any:
    """Sessions sorted by id: all, those in a `group`, or those of one `user`. `after` is the last id of the previous
    page."""
    limit = form.number("limit", 50, 1, 200)
    if form.has("user"):
        found = await opened.sessions.sessions_of(form.text("user"))
        return {"sessions": [_session(row) for row in found[:limit]], "after": ""}
    after = form.text("after", "")
    if form.has("group"):
        found = await opened.sessions.members(form.text("group"), after=after, limit=limit)
    else:
        found = await opened.sessions.listing(after=after, limit=limit)
    return {"sessions": [_session(row) for row in found], "after": found[-1].sid if len(found) == limit else ""}


async def session(opened: Opened, form: Form) -> Any:
    """One session with its last unacknowledged entries."""
    sid = form.text("id")
    found = await opened.sessions.show([sid])
    if not found:
        raise NotFound("session", sid)
    (excerpt,) = await opened.outbox.read([ReadRow(sid, max(1, found[0].top - _LAST + 1), _LAST)])
    entries = [] if excerpt is None else excerpt.entries
    return _session(found[0]) | {
        "outbox": [
            {
                "seq": entry.seq,
                "at": instant_text(entry.ts * 1000),
                "expires_at": instant_text(entry.expiry * _MILLISECOND),
                "bytes": len(entry.tail),
            }
            for entry in entries
        ]
    }


def _session(row: SessionRow) -> dict[str, Any]:
    return {
        "session_id": row.sid,
        "user": row.user,
        "state": row.state,
        "node": row.node if row.state == "attached" else "",
        "epoch": row.epoch,
        "pending_count": row.pending,
        "top": row.top,
        "floor": row.floor,
        "bytes": row.bytes,
        "open_requests": row.open_requests,
        "held": row.held,
        "groups": list(row.groups),
        "created_at": instant_text(row.created_ms * _MILLISECOND),
        "expires_at": instant_text(row.expires_ms * _MILLISECOND),
    }


READINGS: dict[str, Reading] = {
    "server": Reading(server, (), 3),
    "gateway": Reading(gateway, (), 2),
    "sessions": Reading(sessions, ("after", "user", "group", "limit"), 2),
    "session": Reading(session, ("id",), 1),
}
