"""The events of a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from veredus.model.delivery import Cursor
from veredus.model.frames import Auth, Bye, Cancel, Hello, Join, Leave, Message, Request, Welcome


class Ended(NamedTuple):
    """The last event of a connection: send the rest of `take_output`, then close the transport with code and reason."""

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
    """The client has handled everything up to `seq` and seen the responses up to `rid_floor`. `ts` is the time of the
    message sent under this number (0: unknown); the log may now have another message there."""

    seq: int
    rid_floor: int
    ts: int = 0


class SlowConsumer(NamedTuple):
    """For metrics: messages are in flight, and the client has acknowledged nothing for this many seconds."""

    seconds: float


ServerEvent = Hello | Request | Cancel | Join | Leave | Auth | Bye | Acked | SlowConsumer | Ended


# ---- the client's end


class Welcomed(NamedTuple):
    """The session is open; `welcome.result` is new, resumed or reset."""

    welcome: Welcome


class Discontinued(NamedTuple):
    """The log started again (expired, unknown, epoch, ahead, truncated, fork): reload the state."""

    reason: str


class Received(NamedTuple):
    """The next message. Call `done(cursor)` after handling it."""

    message: Message
    cursor: Cursor


class Lost(NamedTuple):
    """Messages `first` to `last` will not arrive (`reason`: quota, expired, ...). Call `done(cursor)` here too."""

    first: int
    last: int
    reason: str
    cursor: Cursor


class Accepted(NamedTuple):
    """The request is stored."""

    rid: int


class Rejected(NamedTuple):
    """The request was refused. With code 504 its session is lost and its outcome unknown."""

    rid: int
    code: int
    retryable: bool
    retry_after_ms: int
    error: str


class TokenExpiring(NamedTuple):
    """Call `authenticate` with a new token within this time."""

    within_ms: int


class Going(NamedTuple):
    """The server asks for a reconnect within this time, to the address in `hint` if there is one."""

    reconnect_within_ms: int
    reason: str
    hint: str


class VolatileReceived(NamedTuple):
    """An unnumbered message."""

    type: str
    body: bytes
    encoding: str


ClientEvent = (
    Welcomed | Discontinued | Received | Lost | Accepted | Rejected | TokenExpiring | Going | VolatileReceived | Ended
)
