"""Encodes and decodes frames in both encodings. Other packages need only this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from veredus.errors import ConfigError
from veredus.model.frames import Frame, FrameError, Kind, Message
from veredus.wire.frame_json import JsonCodec
from veredus.wire.frame_protobuf import ProtobufCodec, checked_metadata, read_message
from veredus.wire.framing import NO_LIMIT
from veredus.wire.gateway_schema import MESSAGES, message_class
from veredus.wire.messages import clean


class Decoder(Protocol):
    """Splits received data into frames. Holds no more than it received."""

    max_frames: int
    """The most bytes that `feed` may hold."""
    ignored: int
    """The number of frames of unknown types, and of blank lines, in the last `feed`."""

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that are complete. Raises FrameError; the decoder cannot be used after that."""

    def end_of_message(self) -> None:
        """A WebSocket message (or the stream) ended here. Raises FrameError if a frame was cut off."""


class FrameCodec(Protocol):
    """One encoding. The results of `encode` and `message_frame` can be joined with others into one chunk."""

    name: str

    def encode(self, frame: Frame) -> bytes: ...

    def message_frame(self, seq: int, ts: int, tail: bytes) -> bytes:
        """A Message frame made from a stored message. With protobuf its bytes are copied, not decoded."""

    def decoder(self, max_frame: int, max_frames: int = NO_LIMIT) -> Decoder: ...


_CODECS: Mapping[str, FrameCodec] = {"protobuf": ProtobufCodec(), "json": JsonCodec()}


def codec(encoding: str) -> FrameCodec:
    """The codec for a transport's `encoding`."""
    try:
        return _CODECS[encoding]
    except KeyError:
        raise ConfigError("encoding", encoding, "protobuf or json", known=_CODECS) from None


def encode_stored(message: Message) -> bytes:
    """The stored part of a message: the protobuf fields of `Message` without seq and ts (both are ignored).

    Raises ConfigError, which names the field that is too long, out of range or of a wrong type.
    """
    try:
        return _encode_stored(message)
    except (TypeError, AttributeError):
        _check_types(message)
        raise


def _encode_stored(message: Message) -> bytes:
    fields: dict[str, Any] = {}
    parts: tuple[Any, ...] = message
    for (name, counted, most), part in zip(_TAIL, parts, strict=True):
        if not part or most == 0:
            continue
        if (len(part) if counted else part) > most:
            got = f"{len(part):,} long" if counted else part
            raise ConfigError(name, got, f"at most {most:,}")
        fields[name] = part
    if message.kind not in Kind.__members__.values():
        raise ConfigError("kind", message.kind, f"one of {', '.join(Kind.__members__)}")
    if message.encoding == "json":
        del fields["encoding"]
    elif message.encoding != "raw":
        raise ConfigError("encoding", message.encoding, "json or raw")
    if message.metadata:
        fields["metadata"] = _checked(message.metadata)
    try:
        record = message_class("Message")(**fields)
    except UnicodeEncodeError:  # a lone surrogate
        record = message_class("Message")(
            **{name: clean(part) if isinstance(part, str) else part for name, part in fields.items()}
        )
    tail: bytes = record.SerializeToString(deterministic=True)
    return tail


def _check_types(message: Message) -> None:
    for name in ("type", "title", "content"):
        if not isinstance(value := getattr(message, name), str):
            raise ConfigError(name, value, "a text")
    pairs = message.metadata.items() if isinstance(message.metadata, Mapping) else None
    if pairs is None or not all(isinstance(key, str) and isinstance(value, str) for key, value in pairs):
        raise ConfigError("metadata", message.metadata, "texts under names, such as {'color': 'red'}")


def _checked(metadata: Mapping[str, str]) -> dict[str, str]:
    try:
        return checked_metadata({clean(key): clean(value) for key, value in metadata.items()})
    except FrameError as error:
        raise ConfigError("metadata", "a long entry", error.reason) from None


# name, whether its length counts, its limit (0: not stored)
_TAIL = tuple(
    (name, field.kind in ("string", "bytes") or "<" in field.kind, 0 if name in ("seq", "ts") else field.most)
    for name, field in MESSAGES["Message"].items()
)


def decode_stored(tail: bytes) -> Message:
    """Decodes a stored message; its seq and ts are 0. Raises FrameError."""
    return read_message(tail)
