"""What a peer passes to its application: items (Message, Gap, Discontinuity) in order, and connection events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from veredus.errors import SessionClosed
from veredus.model.delivery import Cursor, SyncHint
from veredus.model.frames import Kind
from veredus.model.frames import Message as MessageFrame
from veredus.wire.results import result_decoder

decode_json = result_decoder(None)


def decoded(body: bytes, encoding: str) -> Any:
    """The decoded body: a JSON value or bytes; None for an empty JSON body."""
    if encoding != "json":
        return body
    return decode_json(body) if body else None


class Message:
    """One numbered message. `data` is the body: a JSON value, or bytes if the sender passed bytes."""

    __slots__ = ("_data", "cursor", "frame")

    def __init__(self, frame: MessageFrame, cursor: Cursor) -> None:
        self.frame = frame
        self.cursor = cursor
        self._data: Any = _UNREAD

    @property
    def data(self) -> Any:
        if self._data is _UNREAD:
            self._data = decoded(self.frame.body, self.frame.encoding)
        return self._data

    @property
    def seq(self) -> int:
        """1, 2, 3, ... without gaps within a session."""
        return self.frame.seq

    @property
    def ts(self) -> int:
        """When it was stored, in µs since 1970; strictly increasing."""
        return self.frame.ts

    @property
    def kind(self) -> Kind:
        return self.frame.kind

    @property
    def rid(self) -> int:
        """The number of the request that a response answers, otherwise 0."""
        return self.frame.rid

    @property
    def type(self) -> str:
        return self.frame.type

    @property
    def title(self) -> str:
        return self.frame.title

    @property
    def content(self) -> str:
        return self.frame.content

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.frame.metadata

    @property
    def body(self) -> bytes:
        """The encoded body."""
        return self.frame.body

    @property
    def code(self) -> int:
        """0, or the error code of a response."""
        return self.frame.code

    @property
    def error(self) -> str:
        return self.frame.error

    @property
    def group(self) -> str:
        return self.frame.group

    @property
    def sync_hint(self) -> SyncHint:
        return SyncHint(self.frame.sync_hint)

    @property
    def bind_client_seq_id(self) -> int:
        return self.frame.bind_client_seq_id

    @property
    def create_time(self) -> int:
        """Milliseconds since 1970 as set by the sender, otherwise 0."""
        return self.frame.create_time

    def as_dict(self) -> dict[str, Any]:
        """Every field that is not empty, for logs and for `--json`."""
        frame = self.frame
        fields: dict[str, Any] = {"seq": frame.seq, "ts": frame.ts, "kind": Kind(frame.kind).name.lower()}
        for name in _OPTIONAL:
            if value := getattr(frame, name):
                fields[name] = value
        if frame.metadata:
            fields["metadata"] = dict(frame.metadata)
        fields["data"] = self.data
        return fields

    def __repr__(self) -> str:
        frame = self.frame
        return (
            f"<Message {frame.seq} {Kind(frame.kind).name.lower()} {frame.type or frame.rid or ''} {frame.body[:60]!r}>"
        )


class Gap(NamedTuple):
    """The session's policy dropped messages `first` to `last`; they will not arrive."""

    first: int
    last: int
    reason: str
    cursor: Cursor


class Discontinuity(NamedTuple):
    """The log was lost or started again, so messages may be missing before the next one. Reload your state.

    `reason`: expired, unknown, epoch, ahead, truncated or fork.
    """

    reason: str


Item = Message | Gap | Discontinuity


class Connected(NamedTuple):
    """`result` is new, resumed or reset."""

    session: str
    result: str
    reason: str
    node: str
    url: str


class Disconnected(NamedTuple):
    code: int
    reason: str


class Retrying(NamedTuple):
    """The next attempt starts in `delay` seconds; `problem` is why the last one failed."""

    delay: float
    problem: str


class GoingAway(NamedTuple):
    """The gateway asked for a reconnect within this many seconds. The peer does that by itself."""

    within: float
    reason: str


class Closed(NamedTuple):
    """The session ended; `error` is None if this side ended it."""

    error: SessionClosed | None


class Volatile(NamedTuple):
    """An unnumbered message, which is never repeated and may be dropped."""

    type: str
    data: Any


Event = Connected | Disconnected | Retrying | GoingAway | Volatile | Closed

_UNREAD = object()
_OPTIONAL = (
    "rid",
    "type",
    "title",
    "content",
    "code",
    "error",
    "group",
    "sync_hint",
    "bind_client_seq_id",
    "create_time",
)
