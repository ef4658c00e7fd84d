"""What a peer hands to its application: messages, gaps, discontinuities in order; and facts about connections."""

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
    """A body as the sender meant it: a JSON value, or bytes; nothing is None."""
    if encoding != "json":
        return body
    return decode_json(body) if body else None


class Message:
    """One numbered message. `data` is the body: a JSON value, or bytes where the sender gave bytes."""

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
        """1, 2, 3, ... without a hole within a session."""
        return self.frame.seq

    @property
    def ts(self) -> int:
        """When it was numbered, µs since 1970; strictly increasing."""
        return self.frame.ts

    @property
    def kind(self) -> Kind:
        return self.frame.kind

    @property
    def rid(self) -> int:
        """The request that a response answers; else 0."""
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
        """The bytes that travelled."""
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
        """Milliseconds since 1970 as the sender gave it; 0 if not."""
        return self.frame.create_time

    def as_dict(self) -> dict[str, Any]:
        """Every field that says something, for logs and for `--json`."""
        frame = self.frame
        fields: dict[str, Any] = {"seq": frame.seq, "ts": frame.ts, "kind": Kind(frame.kind).name.lower()}
        for name in _TEXTS:
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
    """Messages `first` to `last` were dropped by the session's policy and will not come."""

    first: int
    last: int
    reason: str
    cursor: Cursor


class Discontinuity(NamedTuple):
    """The log was lost or began anew: what came before does not join what comes now. Fetch your state afresh.

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
    """The next attempt comes in `delay` seconds; `problem` is what the last one met."""

    delay: float
    problem: str


class GoingAway(NamedTuple):
    """The gateway asked to reconnect within so many seconds; that happens by itself."""

    within: float
    reason: str


class Closed(NamedTuple):
    """The end of the session; `error` is None if this side ended it."""

    error: SessionClosed | None


class Volatile(NamedTuple):
    """An unnumbered message: never repeated, may be dropped."""

    type: str
    data: Any


Event = Connected | Disconnected | Retrying | GoingAway | Volatile | Closed

_UNREAD = object()
_TEXTS = ("rid", "type", "title", "content", "code", "error", "group", "sync_hint", "bind_client_seq_id", "create_time")
