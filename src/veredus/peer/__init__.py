"""A client of the gateway: sends requests, receives numbered messages in order, resumes by itself. Needs no Redis."""

from veredus.errors import (
    RequestError,
    RequestFailed,
    RequestLost,
    RequestRejected,
    RequestTimeout,
    SessionClosed,
    Unreachable,
)
from veredus.peer.config import PeerConfig
from veredus.peer.items import (
    Closed,
    Connected,
    Disconnected,
    Discontinuity,
    Gap,
    GoingAway,
    Item,
    Message,
    Retrying,
    Volatile,
)
from veredus.peer.peer import Peer, connect
from veredus.peer.requests import Pending
from veredus.peer.saved_session import SavedSession

__all__ = [
    "Closed",
    "Connected",
    "Disconnected",
    "Discontinuity",
    "Gap",
    "GoingAway",
    "Item",
    "Message",
    "Peer",
    "PeerConfig",
    "Pending",
    "RequestError",
    "RequestFailed",
    "RequestLost",
    "RequestRejected",
    "RequestTimeout",
    "Retrying",
    "SavedSession",
    "SessionClosed",
    "Unreachable",
    "Volatile",
    "connect",
]
