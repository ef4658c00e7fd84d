"""Frames as JSON: one object per line, for browsers and for debugging."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Any

import msgspec

from veredus.model.delivery import Cursor
from veredus.model.frames import FRAMES, CloseCode, Frame, FrameError, Kind, Limits, OpenRequest, Resume, Type
from veredus.model.nesting import MAX_DEPTH, too_deep
from veredus.wire.frame_protobuf import checked_gap, checked_metadata, read_message
from veredus.wire.framing import NO_LIMIT, TooManyFrames
from veredus.wire.gateway_schema import MESSAGES, SchemaField

NAMES: dict[Type, str] = {
    Type.HELLO: "hello",
    Type.REQUEST: "request",
    Type.ACK: "ack",
    Type.CANCEL: "cancel",
    Type.PONG: "pong",
    Type.JOIN: "join",
    Type.LEAVE: "leave",
    Type.AUTH: "auth",
    Type.BYE: "bye",
    Type.WELCOME: "welcome",
    Type.MESSAGE: "msg",
    Type.ACCEPT: "accept",
    Type.REJECT: "reject",
    Type.PING: "ping",
    Type.GOAWAY: "goaway",
    Type.GAP: "gap",
    Type.CLOSE: "close",
    Type.VOLATILE: "vol",
}
RENAMED = {"Gap": {"first": "from", "last": "to"}}
_SAME: dict[str, str] = {}
_NAME_OF = {FRAMES[number]: name for number, name in NAMES.items()}
_NESTED: dict[str, Any] = {"Cursor": Cursor, "Resume": Resume, "Limits": Limits, "OpenRequest": OpenRequest}
_ABSENT: dict[str, Any] = {"Cursor": Cursor("", 0, 0), "Limits": Limits(0, 0, 0, 0), "Resume": None}
_KIND_NAMES = {kind: kind.name.lower() for kind in Kind}
_KINDS = {name: kind for kind, name in _KIND_NAMES.items()}
_ENCODER = msgspec.json.Encoder()
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)


class JsonCodec:
    """The text encoding, on WebSocket only."""

    name = "json"

    def encode(self, frame: Frame) -> bytes:
        """A frame with a newline after it."""
        return _ENCODER.encode({"t": _NAME_OF[type(frame)], **_plain(frame)}) + b"\n"

    def message_frame(self, seq: int, ts: int, tail: bytes) -> bytes:
        return b'{"t":"msg","seq":%d,"ts":%d,%b\n' % (seq, ts, json_stored(tail))

    def decoder(self, max_frame: int, max_frames: int = NO_LIMIT) -> JsonDecoder:
        return JsonDecoder(max_frame, max_frames)


class JsonDecoder:
    """Frames from a text message: one object per line; empty lines are skipped."""

    __slots__ = ("_max", "ignored", "max_frames")

    def __init__(self, max_frame: int, max_frames: int) -> None:
        self._max = max_frame
        self.max_frames = max_frames
        self.ignored = 0

    def feed(self, data: bytes) -> list[Frame]:
        frames = []
        lines = data.split(b"\n", self.max_frames + 1)
        if len(lines) > 1 and not lines[-1]:  # what follows the last newline is not a complete line
            lines.pop()
        if len(lines) > self.max_frames:
            raise TooManyFrames(self.max_frames)
        for line in lines:
            if len(line) > self._max:
                raise FrameError(f"a frame of {len(line):,} bytes, allowed are {self._max:,}", CloseCode.TOO_LARGE)
            if line and not line.isspace():
                frame = decode(line)
                if frame is not None:
                    frames.append(frame)
        self.ignored = len(lines) - len(frames)
        return frames

    def end_of_message(self) -> None:
        """A line that was cut off: `feed` has refused it."""


def decode(line: bytes) -> Frame | None:
    """The frame in this line; None for a frame that only newer versions know, whose name starts with `x-`."""
    if too_deep(line, MAX_DEPTH + 1):  # the frame is an object around its body
        raise FrameError(f"a line: nested more than {MAX_DEPTH + 1} deep")
    try:
        line.decode()  # the parser below does not check strings that it passes on
        record = _decoder().decode(line)
    except _BROKEN as error:
        name = _name(line)
        if name.startswith("x-"):
            return None
        raise FrameError(f"{name or 'a line'}: {str(error)[:150]}") from error
    frame: Frame = _frame(record)
    return frame


def json_stored(tail: bytes) -> bytes:
    """The fields of a log's tail as JSON, from the third one to the closing brace."""
    return _kept_json_tail(tail) if len(tail) <= _SMALL_TAIL else _json_stored(tail)


def _json_stored(tail: bytes) -> bytes:
    return _ENCODER.encode(_plain(read_message(tail)))[1:]


_SMALL_TAIL = 4096
_kept_json_tail = lru_cache(maxsize=256)(_json_stored)  # a push to many sessions has one stored message


def _name(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_Named).t[:20]
    except _BROKEN:
        return ""


class _Named(msgspec.Struct):
    t: str


def _plain(value: Any) -> dict[str, Any]:
    """A value as a dict for JSON. As in protobuf, zero, empty and false values are left out."""
    renamed = RENAMED.get(type(value).__name__, _SAME)
    fields: dict[str, Any] = {}
    for name, part in zip(value._fields, value, strict=True):
        if name == "body":
            _put_body(fields, part, value.encoding)
        elif not part or name == "encoding":
            continue
        elif name == "kind":
            fields["kind"] = _KIND_NAMES[part]
        elif isinstance(part, tuple):
            fields[name] = [_plain(item) for item in part] if type(part) is tuple else _plain(part)
        elif isinstance(part, Mapping):
            fields[name] = dict(part)
        else:
            fields[renamed.get(name, name)] = part
    return fields


def _put_body(fields: dict[str, Any], body: bytes, encoding: str) -> None:
    if encoding == "json":
        if not body:
            return
        text = _one_line(body)
        if text is not None:
            fields["body"] = msgspec.Raw(text)
            return
    fields["body64"] = b64encode(body).decode()


def _one_line(body: bytes) -> bytes | None:
    """JSON on one line, or None if this is not JSON, or nested too deep for the other side."""
    if too_deep(body):
        return None
    try:
        body.decode()
        if b"\n" in body or b"\r" in body:
            body = msgspec.json.format(body, indent=-1)
        msgspec.json.decode(body)
    except _BROKEN:
        return None
    return body


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    union: Any = None
    cls: Any
    for number, cls in FRAMES.items():
        struct = _struct(cls.__name__, cls, NAMES[number])
        union = struct if union is None else union | struct
    return msgspec.json.Decoder(union)


@cache
def _struct(name: str, cls: Any, tag: str | None) -> Any:
    renamed = RENAMED.get(name, {})
    fields: list[Any] = []
    for field_name, field in MESSAGES[name].items():
        if field_name == "encoding":
            fields.append(("body64", str | None, None))
        elif field.least:
            fields.append((field_name, _annotation(field)))
        else:
            fields.append((field_name, _annotation(field), _default(field)))
    return msgspec.defstruct(
        name,
        fields,
        tag_field="t" if tag else None,
        tag=tag,
        rename=renamed or None,
        namespace={"frame": cls},
        kw_only=True,
    )


def _annotation(field: SchemaField) -> Any:
    kind = field.kind
    if kind == "string":
        return Annotated[str, msgspec.Meta(min_length=field.least, max_length=field.most)]
    if kind == "bool":
        return bool
    if kind == "bytes":
        return msgspec.Raw
    if kind == "Kind":
        return str
    if kind.startswith("map<"):
        return Annotated[dict[str, str], msgspec.Meta(max_length=field.most)]
    if kind.startswith("repeated "):
        inner = kind.removeprefix("repeated ")
        return Annotated[list[_struct(inner, _NESTED[inner], None)], msgspec.Meta(max_length=field.most)]  # type: ignore[misc]
    if kind in _NESTED:
        return _struct(kind, _NESTED[kind], None) | None
    return Annotated[int, msgspec.Meta(ge=field.least, le=field.most)]


def _default(field: SchemaField) -> Any:
    """The default of an absent field, as in protobuf."""
    if field.kind == "string":
        return ""
    if field.kind == "bytes":
        return msgspec.Raw(b"")
    if field.kind in _NESTED:
        return None
    if field.kind.startswith(("map<", "repeated ")):
        return msgspec.field(default_factory=dict if field.kind.startswith("map<") else list)
    return field.kind != "bool" and 0


def _frame(record: Any) -> Any:
    """The value of a field, if it fits the schema."""
    cls = record.frame
    values: list[Any] = []
    for name in cls._fields:
        if name == "encoding":
            values.append("json" if record.body64 is None else "raw")
            continue
        part = getattr(record, name)
        if name == "body":
            part = _body(record)
        elif name == "kind":
            if part not in _KINDS:
                raise FrameError(f"msg.kind: got {part[:20]!r}, allowed are {', '.join(_KINDS)}")
            part = _KINDS[part]
        elif name == "metadata":
            checked_metadata(part)
        elif isinstance(part, list):
            part = tuple(_frame(item) for item in part)
        elif isinstance(part, msgspec.Struct):
            part = _frame(part)
        elif part is None:
            part = _ABSENT[MESSAGES[cls.__name__][name].kind]
        values.append(part)
    if cls is FRAMES[Type.GAP]:
        checked_gap(values[0], values[1])
    return cls._make(values)


def _body(record: Any) -> bytes:
    most = MESSAGES[record.frame.__name__]["body"].most
    if record.body64 is None:
        body = bytes(record.body)
    elif bytes(record.body):
        raise FrameError("body and body64 together")
    else:
        try:
            body = b64decode(record.body64, validate=True)
        except (Base64Error, ValueError) as error:
            raise FrameError("body64: not base64") from error
    if len(body) > most:
        raise FrameError(f"body: has {len(body):,} bytes, allowed are {most:,}", CloseCode.TOO_LARGE)
    return body
