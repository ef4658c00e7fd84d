"""What travels between a client and the gateway: frames as values, close codes, error codes, and the limits of every
field."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from veredus.errors import VeredusError
from veredus.model.delivery import MAX_BODY, NO_CURSOR, Cursor

VERSION = 1
SUBPROTOCOL = "veredus.gw.1"  # WebSocket, protobuf in binary messages
SUBPROTOCOL_JSON = "veredus.gw.1.json"  # WebSocket, JSON lines in text messages
ALPN = "veredus-gw/1"  # QUIC, protobuf

MAX_NUMBER = 2**53 - 1  # the largest whole number that every client language holds exactly
MAX_FRAME_FROM_CLIENT = 64 * 1024
MAX_FRAME_FROM_SERVER = MAX_BODY + 256 * 1024
MAX_BATCH = 256 * 1024  # one WebSocket message from a client: several frames together

MAX_CLOSE_REASON = 120  # bytes of UTF-8


class CloseCode(IntEnum):
    """Why a connection ended. 4000-4499: reconnect and resume. 4500-4999: do not reconnect by yourself."""

    GOING_AWAY = 4000
    NO_PONG = 4001
    SLOW_CONSUMER = 4002
    BACKEND_UNAVAILABLE = 4003
    TOKEN_EXPIRED = 4004
    RATE_LIMITED = 4005
    INTERNAL = 4006
    INSUFFICIENT_STATE = 4007
    SERVER_OVERLOADED = 4008
    REBALANCE = 4009
    BAD_FRAME = 4500
    UNAUTHORIZED = 4501
    HELLO_TIMEOUT = 4502
    SUPERSEDED = 4503
    SESSION_CLOSED = 4504
    VERSION_UNSUPPORTED = 4506
    ORIGIN_FORBIDDEN = 4507
    TOO_LARGE = 4508


def close_reason(text: str) -> str:
    """What a close frame of WebSocket can hold of a reason: 123 bytes of UTF-8, in whole characters."""
    return text.encode("utf-8", "replace")[:MAX_CLOSE_REASON].decode("utf-8", "ignore")


def resumable(code: int) -> bool:
    """Whether a client may reconnect and resume after this close code. A lost connection has none.

    WebSocket's own codes for unreadable data (1002, 1003, 1007, 1009) are as final as 4500 and 4508.
    """
    return not (4500 <= code <= 4999 or code in (1002, 1003, 1007, 1009))


class ErrorCode(IntEnum):
    """Why a request was refused (Reject.code) or failed (Message.code of a response); 0 is success."""

    BAD_REQUEST = 400
    FORBIDDEN = 403
    UNKNOWN_ACTION = 404
    DEADLINE = 408
    CONFLICT = 409
    TOO_LARGE = 413
    LIMIT = 429
    CANCELLED = 499
    HANDLER_FAILED = 500
    UNAVAILABLE = 503
    WORKER_LOST = 504

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, sent under a new number."""
        return self in _RETRYABLE


_RETRYABLE = frozenset({ErrorCode.DEADLINE, ErrorCode.LIMIT, ErrorCode.UNAVAILABLE, ErrorCode.WORKER_LOST})


def retryable(code: object) -> bool:
    """Whether a refusal with this code may be followed by success; False for unknown codes."""
    return code in _RETRYABLE


class FrameError(VeredusError, ValueError):
    """Bytes from the other side that break the protocol; `code` is the resulting close code."""

    def __init__(self, reason: str, code: CloseCode = CloseCode.BAD_FRAME) -> None:
        self.reason, self.code = reason, code
        super().__init__(f"{int(code)} {code.name.lower()}: {reason}")


class Kind(IntEnum):
    """The kind of a numbered message."""

    RESPONSE = 1
    NOTIFY = 2
    GROUP = 3
    SYSTEM = 4
    TOMBSTONE = 5  # its body expired before it could be sent; only the number is left
    LATE = 6  # it was bound before a response that had already been sent


class Type(IntEnum):
    """Number of a frame type, which is also its field number in the protobuf envelope."""

    HELLO = 1
    REQUEST = 2
    ACK = 3
    CANCEL = 4
    PONG = 5
    JOIN = 6
    LEAVE = 7
    AUTH = 8
    BYE = 9
    WELCOME = 64
    MESSAGE = 65
    ACCEPT = 66
    REJECT = 67
    PING = 68
    GOAWAY = 69
    GAP = 70
    CLOSE = 71
    VOLATILE = 72


NO_METADATA: Mapping[str, str] = MappingProxyType({})


# ---- client to server


class Resume(NamedTuple):
    """What a client presents to resume its session."""

    sid: str
    secret: str
    cursor: Cursor = NO_CURSOR


class Hello(NamedTuple):
    """The first frame of a connection, within 10 s. Windows of 0 leave the choice to the server."""

    version: int = VERSION
    token: str = ""
    resume: Resume | None = None
    window_messages: int = 0
    window_bytes: int = 0
    client: str = ""
    rid_floor: int = 0


class Request(NamedTuple):
    """Ask for an action. `deadline_ms` counts from its arrival; 0 leaves it to the server."""

    rid: int
    action: str
    body: bytes = b""
    deadline_ms: int = 0
    no_reply: bool = False
    serial: bool = False
    encoding: str = "json"


class Ack(NamedTuple):
    """All messages up to `seq` were handled; all answers to requests up to `rid_floor` were seen."""

    seq: int
    rid_floor: int = 0


class Cancel(NamedTuple):
    """Ask to stop a request."""

    rid: int


class Pong(NamedTuple):
    """Answer to a ping; carries an ack."""

    echo: int
    seq: int = 0


class Join(NamedTuple):
    """Join a group."""

    group: str


class Leave(NamedTuple):
    """Leave a group."""

    group: str


class Auth(NamedTuple):
    """A new token, before the old one expires."""

    token: str


class Bye(NamedTuple):
    """The session ends and its log is deleted."""

    code: int = 0


# ---- server to client


class Limits(NamedTuple):
    """What this connection may do, as agreed in the welcome."""

    window_messages: int = 256
    window_bytes: int = 256 * 1024
    max_frame: int = MAX_FRAME_FROM_CLIENT
    max_open_requests: int = 32


class OpenRequest(NamedTuple):
    """A request that the server knows: `open`, or `done` (its response is in the log)."""

    rid: int
    state: str


class Welcome(NamedTuple):
    """Answer to a hello. `result` is new, resumed or reset; `cursor` is where delivery starts (the next is seq + 1)."""

    sid: str
    secret: str
    result: str
    reason: str = ""
    cursor: Cursor = NO_CURSOR
    top: int = 0
    node: str = ""
    heartbeat_ms: int = 25_000
    pong_ms: int = 10_000
    session_ttl_ms: int = 120_000
    limits: Limits = Limits()
    open: tuple[OpenRequest, ...] = ()


class Message(NamedTuple):
    """An entry of the session's log. `seq` is gapless, `ts` (µs) strictly increasing; `code` 0 is success."""

    seq: int = 0
    ts: int = 0
    kind: Kind = Kind.NOTIFY
    rid: int = 0
    type: str = ""
    title: str = ""
    content: str = ""
    metadata: Mapping[str, str] = NO_METADATA
    body: bytes = b""
    code: int = 0
    error: str = ""
    group: str = ""
    sync_hint: int = 0
    bind_client_seq_id: int = 0
    create_time: int = 0
    encoding: str = "json"


class Accept(NamedTuple):
    """The request is durable: exactly one response will come."""

    rid: int


class Reject(NamedTuple):
    """The request was refused before it was accepted: nothing happened and nothing will."""

    rid: int
    code: int
    retryable: bool = False
    retry_after_ms: int = 0
    error: str = ""


class Ping(NamedTuple):
    """Sent when there is nothing else to send. `top` is the newest number of the log.

    `degraded`: the server cannot reach its store. `token_expires_ms`: send Auth within this time (0: no hurry).
    """

    echo: int
    top: int = 0
    degraded: bool = False
    token_expires_ms: int = 0


class GoAway(NamedTuple):
    """Reconnect within this time, elsewhere if `hint` says where."""

    reconnect_within_ms: int = 0
    reason: str = ""
    hint: str = ""


class Gap(NamedTuple):
    """Messages `first` to `last` were dropped by policy and will not come; `ts` is that of the last (0: unknown)."""

    first: int
    last: int
    reason: str = ""
    ts: int = 0


class Close(NamedTuple):
    """The last frame of a connection that the server ends."""

    code: int
    reason: str = ""
    retry_after_ms: int = 0


class Volatile(NamedTuple):
    """Unnumbered, never repeated, dropped when the client is slow."""

    type: str = ""
    body: bytes = b""
    encoding: str = "json"


FromClient = Hello | Request | Ack | Cancel | Pong | Join | Leave | Auth | Bye
FromServer = Welcome | Message | Accept | Reject | Ping | GoAway | Gap | Close | Volatile
Frame = FromClient | FromServer

FRAMES: Mapping[Type, type[Frame]] = MappingProxyType(
    {
        Type.HELLO: Hello,
        Type.REQUEST: Request,
        Type.ACK: Ack,
        Type.CANCEL: Cancel,
        Type.PONG: Pong,
        Type.JOIN: Join,
        Type.LEAVE: Leave,
        Type.AUTH: Auth,
        Type.BYE: Bye,
        Type.WELCOME: Welcome,
        Type.MESSAGE: Message,
        Type.ACCEPT: Accept,
        Type.REJECT: Reject,
        Type.PING: Ping,
        Type.GOAWAY: GoAway,
        Type.GAP: Gap,
        Type.CLOSE: Close,
        Type.VOLATILE: Volatile,
    }
)
