"""Both ends of a session: the one page to import links, their settings and their events from."""

from __future__ import annotations

from veredus.link.client import ClientLink
from veredus.link.config import LinkConfig
from veredus.link.events import (
    Accepted,
    Acked,
    ClientEvent,
    Discontinuity,
    Ended,
    Entry,
    Going,
    Lost,
    Received,
    Rejected,
    ServerEvent,
    SlowConsumer,
    TokenExpiring,
    VolatileReceived,
    Wanted,
    Welcomed,
)
from veredus.link.server import ServerLink

__all__ = [
    "Accepted",
    "Acked",
    "ClientEvent",
    "ClientLink",
    "Discontinuity",
    "Ended",
    "Entry",
    "Going",
    "LinkConfig",
    "Lost",
    "Received",
    "Rejected",
    "ServerEvent",
    "ServerLink",
    "SlowConsumer",
    "TokenExpiring",
    "VolatileReceived",
    "Wanted",
    "Welcomed",
]
