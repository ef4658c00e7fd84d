"""Frames as protobuf: a length, then `Frame` of gateway.proto, with fast paths for the most frequent frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from veredus.model.delivery import Cursor
from veredus.model.frames import (
    FRAMES,
    MAX_NUMBER,
    Ack,
    Frame,
    FrameError,
    Hello,
    Kind,
    Limits,
    Message,
    OpenRequest,
    Resume,
    Type,
    Welcome,
)
from veredus.wire.framing import NO_LIMIT, Splitter, with_length
from veredus.wire.gateway_schema import MAX_METADATA_KEY, MAX_METADATA_VALUE, MESSAGES, message_class
from veredus.wire.varint import varint

_ACK_TAG = Type.ACK << 3 | 2
_MESSAGE_TAG = varint(Type.MESSAGE << 3 | 2)
_HEAD = 18  # size of seq and ts: two fixed64 with their tags
_BARE = Struct("<BQBQ").pack
_SHORT = Struct("<4sBQBQ").pack  # the prefix's two lengths take a byte each
_LONG = Struct("<6sBQBQ").pack  # its lengths take two bytes each
_LONGEST_SHORT = 127 - _HEAD - 3
_SHORTEST_LONG = 128 - _HEAD
_PREPARED = 4096


def _prefix(tail: int) -> bytes:
    body = _HEAD + tail
    inner = _MESSAGE_TAG + varint(body)
    return varint(len(inner) + body) + inner


_PREFIXES = tuple(_prefix(length) for length in range(_PREPARED))


class ProtobufCodec:
    """The binary encoding, on QUIC and on WebSocket."""

    name = "protobuf"

    def encode(self, frame: Frame) -> bytes:
        """A frame with its length in front."""
        shape = _SHAPES_OF[type(frame)]
        body = record_of(frame).SerializeToString(deterministic=True)
        return with_length(shape.tag + varint(len(body)) + body)

    def message_frame(self, seq: int, ts: int, tail: bytes) -> bytes:
        length = len(tail)
        if length <= _LONGEST_SHORT:
            return _SHORT(_PREFIXES[length], 9, seq, 17, ts) + tail
        if _SHORTEST_LONG <= length < _PREPARED:
            return _LONG(_PREFIXES[length], 9, seq, 17, ts) + tail
        return _prefix(length) + _BARE(9, seq, 17, ts) + tail

    def decoder(self, max_frame: int, max_frames: int = NO_LIMIT) -> ProtobufDecoder:
        return ProtobufDecoder(max_frame, max_frames)


class ProtobufDecoder:
    """Splits bytes into frames, however they were cut."""

    __slots__ = ("_splitter", "ignored")

    def __init__(self, max_frame: int, max_frames: int) -> None:
        self._splitter = Splitter(max_frame, max_frames)
        self.ignored = 0

    @property
    def max_frames(self) -> int:
        return self._splitter.max_frames

    @max_frames.setter
    def max_frames(self, most: int) -> None:
        self._splitter.max_frames = most

    def feed(self, data: bytes) -> list[Frame]:
        frames = []
        pieces = self._splitter.split(data)
        for piece in pieces:
            frame = decode(piece)
            if frame is not None:
                frames.append(frame)
        self.ignored = len(pieces) - len(frames)
        return frames

    def end_of_message(self) -> None:
        if self._splitter.held:
            raise FrameError(f"a frame is cut off after {self._splitter.held:,} bytes")


def decode(data: bytes) -> Frame | None:
    """The frame in these bytes (without the length); None for a type that only newer versions know."""
    if data[0] == _ACK_TAG and data[1:2] and data[1] == len(data) - 2:
        ack = _decode_ack(data)
        if ack is not None:
            return ack
    tag, start = _read_varint(data, 0)
    length, start = _read_varint(data, start)
    number = tag >> 3
    if tag & 7 != 2 or number == 0:
        raise FrameError("not a frame: its first field has an unknown type")
    if length != len(data) - start:
        raise FrameError(f"a frame of {len(data) - start:,} bytes says that it has {length:,}")
    if number == Type.MESSAGE:
        return read_message(data[start:])
    shape = _SHAPES.get(number)
    if shape is None:
        if number < 128:
            raise FrameError(f"unknown frame type {number}")
        return None
    frame: Frame = shape.read(data[start:])
    return frame


def read_message(body: bytes) -> Message:
    """A Message from its protobuf fields, without the envelope; also from a stored message, which has no seq and no
    ts."""
    try:
        record = _message_class().FromString(body)
    except (DecodeError, ValueError) as error:
        raise FrameError("Message: cannot be parsed") from error
    seq, ts, kind, rid, what, title, content, data, code, error_text, group, hint, bind, created, encoding = _PARTS(
        record
    )
    if (
        len(body) > _NOTHING_TOO_LONG
        or max(seq, ts, rid, bind, created) > MAX_NUMBER
        or kind not in _KINDS
        or code > _MOST_CODE
        or hint > _MOST_HINT
    ):
        MESSAGE_SHAPE.check(MESSAGE_SHAPE.getter(record))
    # reading a map costs as much as everything else: first check whether its tag occurs
    metadata = checked_metadata(dict(record.metadata)) if b"\x42" in body else {}
    return Message(
        seq, ts, _KINDS[kind], rid, what, title, content, metadata, data, code, error_text, group, hint, bind, created,
        "json" if not encoding else checked_encoding(encoding),
    )  # fmt: skip


@cache
def _message_class() -> Any:
    return message_class("Message")


_PARTS = attrgetter(*(name for name in Message._fields if name != "metadata"))
_NOTHING_TOO_LONG = min(
    field.most for name, field in MESSAGES["Message"].items() if field.kind == "string" and name != "encoding"
)
_MOST_CODE = MESSAGES["Message"]["code"].most
_MOST_HINT = MESSAGES["Message"]["sync_hint"].most


def record_of(value: Any) -> Any:
    """The protobuf message of a value."""
    fields: dict[str, Any] = {}
    for name, part in zip(value._fields, value, strict=True):
        if name == "encoding":
            if part != "json":
                fields[name] = part
        elif isinstance(part, tuple):
            fields[name] = [record_of(item) for item in part] if type(part) is tuple else record_of(part)
        elif part:
            fields[name] = dict(part) if name == "metadata" else part
    return message_class(type(value).__name__)(**fields)


def _decode_ack(data: bytes) -> Ack | None:
    """An ack as almost every client sends it: seq, perhaps rid_floor, nothing else."""
    numbers, position, end = [0, 0], 2, len(data)
    for index, tag in ((0, 8), (1, 16)):
        if position < end and data[position] == tag:
            number = shift = 0
            while True:
                position += 1
                if position == end or shift > 49:
                    return None
                digit = data[position]
                number |= (digit & 127) << shift
                if digit < 128:
                    break
                shift += 7
            position += 1
            numbers[index] = number
    if position != end or max(numbers) > _MOST_ACK:
        return None
    return Ack(*numbers)


_MOST_ACK = MESSAGES["Ack"]["seq"].most


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position == len(data) or shift > 28:
            raise FrameError("not a frame: a number is cut off or too long")
        digit = data[position]
        position += 1
        number |= (digit & 127) << shift
        if digit < 128:
            return number, position
        shift += 7


class _Range(NamedTuple):
    place: int
    name: str
    least: int
    most: int


class Shape:
    """How one type of value is read: its fields, their limits, and how to convert nested values."""

    __slots__ = ("_fix", "_make", "_parse", "getter", "lengths", "name", "numbers", "tag")

    def __init__(self, number: int, cls: Any, fix: Callable[[list[Any]], None] | None) -> None:
        self.name = cls.__name__
        self.tag = varint(number << 3 | 2)
        fields = MESSAGES[self.name]
        names = cls._fields
        assert tuple(fields) == names, f"{self.name}: value and schema differ"
        getter = attrgetter(*names)
        self.getter = getter if len(names) > 1 else lambda record: (getter(record),)
        self._make = cls._make
        self._fix = fix
        self._parse: Callable[[bytes], Any] | None = None
        ranges = [_Range(i, name, fields[name].least, fields[name].most) for i, name in enumerate(names)]
        kinds = [fields[name].kind for name in names]
        self.numbers = tuple(r for r, kind in zip(ranges, kinds, strict=True) if kind in _NUMBERS)
        self.lengths = tuple(r for r, kind in zip(ranges, kinds, strict=True) if kind in _LENGTHS or "<" in kind)

    def read(self, body: bytes) -> Any:
        parse = self._parse
        if parse is None:
            parse = self._parse = message_class(self.name).FromString
        try:
            record = parse(body)
        except (DecodeError, ValueError) as error:
            raise FrameError(f"{self.name}: cannot be parsed") from error
        return self.value(record)

    def value(self, record: Any) -> Any:
        values: Any = self.getter(record)
        self.check(values)
        if self._fix is not None:
            values = list(values)
            self._fix(values)
        return self._make(values)

    def check(self, values: Any) -> None:
        """Raise FrameError for the first field that is out of range."""
        for index, name, least, most in self.numbers:
            if not least <= values[index] <= most:
                raise FrameError(f"{self.name}.{name}: got {values[index]}, allowed are {least} to {most}")
        for index, name, least, most in self.lengths:
            if not least <= len(values[index]) <= most:
                raise FrameError(
                    f"{self.name}.{name}: has length {len(values[index]):,}, allowed are {least} to {most:,}"
                )


_NUMBERS = {"uint32", "uint64", "fixed64", "Kind"}
_LENGTHS = {"string", "bytes"}


def _encoding(index: int) -> Callable[[list[Any]], None]:
    def fix(values: list[Any]) -> None:
        values[index] = checked_encoding(values[index])

    return fix


def checked_encoding(text: str) -> str:
    if text in ("", "json"):
        return "json"
    if text == "raw":
        return "raw"
    raise FrameError(f"encoding: got {text!r}, allowed are json and raw")


def checked_metadata(metadata: dict[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise FrameError(
                f"metadata {key[:40]!r}: allowed are {MAX_METADATA_KEY} characters for a key, "
                f"{MAX_METADATA_VALUE} for its value"
            )
    return metadata


def checked_gap(first: int, last: int) -> None:
    if last < first:
        raise FrameError(f"Gap: {first} to {last}")


def _fix_hello(values: list[Any]) -> None:
    resume = values[_RESUME]
    # an absent sub-message reads as an empty one; a resume always names a session
    values[_RESUME] = None if not resume.ByteSize() else _RESUME_SHAPE.value(resume)


def _fix_resume(values: list[Any]) -> None:
    values[2] = _CURSOR_SHAPE.value(values[2])


def _fix_welcome(values: list[Any]) -> None:
    values[_CURSOR] = _CURSOR_SHAPE.value(values[_CURSOR])
    values[_LIMITS] = _LIMITS_SHAPE.value(values[_LIMITS])
    if len(values[_OPEN]) > MESSAGES["Welcome"]["open"].most:
        raise FrameError("Welcome.open: too many")
    values[_OPEN] = tuple(_OPEN_SHAPE.value(item) for item in values[_OPEN])


def _fix_gap(values: list[Any]) -> None:
    checked_gap(values[0], values[1])


_KINDS = {int(kind): kind for kind in Kind}
_RESUME = Hello._fields.index("resume")
_CURSOR, _LIMITS, _OPEN = (Welcome._fields.index(name) for name in ("cursor", "limits", "open"))
_CURSOR_SHAPE = Shape(0, Cursor, None)
_RESUME_SHAPE = Shape(0, Resume, _fix_resume)
_LIMITS_SHAPE = Shape(0, Limits, None)
_OPEN_SHAPE = Shape(0, OpenRequest, None)
_FIXES: dict[str, Callable[[list[Any]], None]] = {
    "Hello": _fix_hello,
    "Request": _encoding(6),
    "Welcome": _fix_welcome,
    "Gap": _fix_gap,
    "Volatile": _encoding(2),
}
_SHAPES: dict[int, Shape] = {
    int(number): Shape(number, frame, _FIXES.get(frame.__name__)) for number, frame in FRAMES.items()
}
_SHAPES_OF: dict[type, Shape] = {frame: _SHAPES[number] for number, frame in FRAMES.items()}
MESSAGE_SHAPE = _SHAPES[Type.MESSAGE]
