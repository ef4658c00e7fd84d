"""Re-exports the links of both ends, their settings and their events."""

from __future__ import annotations

from veredus.link.client import ClientLink
from veredus.link.config import LinkConfig
from veredus.link.events import (
    Accepted,
    Acked,
    ClientEvent,
    Discontinued,
    Ended,
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
from veredus.wire.log_entries import LogEntry

__all__ = [
    "Accepted",
    "Acked",
    "ClientEvent",
    "ClientLink",
    "Discontinued",
    "Ended",
    "Going",
    "LinkConfig",
    "LogEntry",
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
