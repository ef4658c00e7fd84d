"""What a link tells its owner, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from veredus.model.delivery import Cursor
from veredus.model.frames import Auth, Bye, Cancel, Hello, Join, Leave, Message, Request, Welcome
from veredus.wire.entries import Entry as Entry


class Ended(NamedTuple):
    """The last event of a connection, at either end: send what `take_output` has, then close the transport with it."""

    code: int
    reason: str
    retry_after_ms: int = 0


# ---- the gateway's end


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read from the log next."""

    from_seq: int
    count: int
    max_bytes: int


class Acked(NamedTuple):
    """The client has handled everything up to `seq` and seen the answers up to `rid_floor`: tell the log, in time. `ts`
    is that of the message that was sent under this number (0: not known); the log may have another one there now."""

    seq: int
    rid_floor: int
    ts: int = 0


class SlowConsumer(NamedTuple):
    """For metrics: messages are in flight and nothing was acknowledged for so many seconds."""

    seconds: float


ServerEvent = Hello | Request | Cancel | Join | Leave | Auth | Bye | Acked | SlowConsumer | Ended


# ---- the client's end


class Welcomed(NamedTuple):
    """The session is open; `welcome.result` is new, resumed or reset."""

    welcome: Welcome


class Discontinuity(NamedTuple):
    """The log was begun anew (expired, unknown, epoch, ahead, truncated, fork): fetch the state afresh."""

    reason: str


class Received(NamedTuple):
    """The next message. Call `done(cursor)` when it has been handled."""

    message: Message
    cursor: Cursor


class Lost(NamedTuple):
    """Messages `first` to `last` will not come (`reason`: quota, expired, ...). Call `done(cursor)` here too."""

    first: int
    last: int
    reason: str
    cursor: Cursor


class Accepted(NamedTuple):
    """The request is durable."""

    rid: int


class Rejected(NamedTuple):
    """The request was refused; with code 504 its session is gone and nobody knows what became of it."""

    rid: int
    code: int
    retryable: bool
    retry_after_ms: int
    error: str


class TokenExpiring(NamedTuple):
    """Call `authenticate` with a new token within this time."""

    within_ms: int


class Going(NamedTuple):
    """The server asks to reconnect within this time, elsewhere if `hint` says where."""

    reconnect_within_ms: int
    reason: str
    hint: str


class VolatileReceived(NamedTuple):
    """An unnumbered message."""

    type: str
    body: bytes
    encoding: str


ClientEvent = (
    Welcomed | Discontinuity | Received | Lost | Accepted | Rejected | TokenExpiring | Going | VolatileReceived | Ended
)
