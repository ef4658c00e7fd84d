"""The gateway's protobuf messages as data, with the limits of every field; `gateway.proto` says the same to others."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from veredus.model.delivery import MAX_BODY
from veredus.model.frames import FRAMES, MAX_NUMBER, Kind

PACKAGE = "veredus.gateway.v1"
MAX_METADATA_KEY = 128
MAX_METADATA_VALUE = 4096
MILLISECONDS = 7 * 86_400_000  # no duration in a frame is longer than a week


class Field(NamedTuple):
    """Number and type as in a .proto file; the least and the most that a value (or its length) may be."""

    number: int
    kind: str
    most: int
    least: int = 0


MESSAGES: dict[str, dict[str, Field]] = {
    "Cursor": {
        "epoch": Field(1, "string", 32),
        "seq": Field(2, "uint64", MAX_NUMBER),
        "ts": Field(3, "uint64", MAX_NUMBER),
    },
    "Resume": {
        "sid": Field(1, "string", 128, 1),
        "secret": Field(2, "string", 256),
        "cursor": Field(3, "Cursor", 1),
    },
    "Limits": {
        "window_messages": Field(1, "uint32", 2**31),
        "window_bytes": Field(2, "uint32", 2**31),
        "max_frame": Field(3, "uint32", 2**31),
        "max_open_requests": Field(4, "uint32", 2**31),
    },
    "OpenRequest": {
        "rid": Field(1, "uint64", MAX_NUMBER, 1),
        "state": Field(2, "string", 16),
    },
    "Hello": {
        "version": Field(1, "uint32", 1_000_000),
        "token": Field(2, "string", 16_384),
        "resume": Field(3, "Resume", 1),
        "window_messages": Field(4, "uint32", 2**31),
        "window_bytes": Field(5, "uint32", 2**31),
        "client": Field(6, "string", 256),
        "rid_floor": Field(7, "uint64", MAX_NUMBER),
    },
    "Request": {
        "rid": Field(1, "uint64", MAX_NUMBER, 1),
        "action": Field(2, "string", 256, 1),
        "body": Field(3, "bytes", MAX_BODY),
        "deadline_ms": Field(4, "uint64", MILLISECONDS),
        "no_reply": Field(5, "bool", 1),
        "serial": Field(6, "bool", 1),
        "encoding": Field(7, "string", 8),
    },
    "Ack": {
        "seq": Field(1, "uint64", MAX_NUMBER),
        "rid_floor": Field(2, "uint64", MAX_NUMBER),
    },
    "Cancel": {"rid": Field(1, "uint64", MAX_NUMBER, 1)},
    "Pong": {
        "echo": Field(1, "uint64", MAX_NUMBER),
        "seq": Field(2, "uint64", MAX_NUMBER),
    },
    "Join": {"group": Field(1, "string", 256, 1)},
    "Leave": {"group": Field(1, "string", 256, 1)},
    "Auth": {"token": Field(1, "string", 16_384)},
    "Bye": {"code": Field(1, "uint32", 10_000)},
    "Welcome": {
        "sid": Field(1, "string", 128, 1),
        "secret": Field(2, "string", 256),
        "result": Field(3, "string", 16, 1),
        "reason": Field(4, "string", 64),
        "cursor": Field(5, "Cursor", 1),
        "top": Field(6, "uint64", MAX_NUMBER),
        "node": Field(7, "string", 256),
        "heartbeat_ms": Field(8, "uint64", MILLISECONDS),
        "pong_ms": Field(9, "uint64", MILLISECONDS),
        "session_ttl_ms": Field(10, "uint64", MILLISECONDS),
        "limits": Field(11, "Limits", 1),
        "open": Field(12, "repeated OpenRequest", 4096),
    },
    "Message": {
        "seq": Field(1, "fixed64", MAX_NUMBER),
        "ts": Field(2, "fixed64", MAX_NUMBER),
        "kind": Field(3, "Kind", max(Kind), min(Kind)),
        "rid": Field(4, "uint64", MAX_NUMBER),
        "type": Field(5, "string", 256),
        "title": Field(6, "string", 1024),
        "content": Field(7, "string", 16_384),
        "metadata": Field(8, "map<string, string>", 64),
        "body": Field(9, "bytes", MAX_BODY),
        "code": Field(10, "uint32", 10_000),
        "error": Field(11, "string", 4096),
        "group": Field(12, "string", 256),
        "sync_hint": Field(13, "uint32", 2),
        "bind_client_seq_id": Field(14, "uint64", MAX_NUMBER),
        "create_time": Field(15, "uint64", MAX_NUMBER),
        "encoding": Field(16, "string", 8),
    },
    "Accept": {"rid": Field(1, "uint64", MAX_NUMBER, 1)},
    "Reject": {
        "rid": Field(1, "uint64", MAX_NUMBER, 1),
        "code": Field(2, "uint32", 10_000),
        "retryable": Field(3, "bool", 1),
        "retry_after_ms": Field(4, "uint64", MILLISECONDS),
        "error": Field(5, "string", 4096),
    },
    "Ping": {
        "echo": Field(1, "uint64", MAX_NUMBER),
        "top": Field(2, "uint64", MAX_NUMBER),
        "degraded": Field(3, "bool", 1),
        "token_expires_ms": Field(4, "uint64", MILLISECONDS),
    },
    "GoAway": {
        "reconnect_within_ms": Field(1, "uint64", MILLISECONDS),
        "reason": Field(2, "string", 256),
        "hint": Field(3, "string", 1024),
    },
    "Gap": {
        "first": Field(1, "uint64", MAX_NUMBER, 1),
        "last": Field(2, "uint64", MAX_NUMBER, 1),
        "reason": Field(3, "string", 64),
        "ts": Field(4, "uint64", MAX_NUMBER),
    },
    "Close": {
        "code": Field(1, "uint32", 10_000),
        "reason": Field(2, "string", 256),
        "retry_after_ms": Field(3, "uint64", MILLISECONDS),
    },
    "Volatile": {
        "type": Field(1, "string", 256),
        "body": Field(2, "bytes", MAX_BODY),
        "encoding": Field(3, "string", 8),
    },
}

_Proto = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "uint32": _Proto.TYPE_UINT32,
    "uint64": _Proto.TYPE_UINT64,
    "fixed64": _Proto.TYPE_FIXED64,
    "bool": _Proto.TYPE_BOOL,
}


@cache
def message_class(name: str) -> Any:
    """The class of a message (or of the envelope `Frame`), built from the table above at first use."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="veredus/gateway.proto", package=PACKAGE, syntax="proto3")
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="KIND_UNSPECIFIED", number=0)
    for kind in Kind:
        kinds.value.add(name=f"KIND_{kind.name}", number=kind)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, field in fields.items():
            _add_field(message, field_name, field)
    envelope = file.message_type.add(name="Frame")
    envelope.oneof_decl.add(name="frame")
    for number, frame in FRAMES.items():
        _add_field(envelope, frame.__name__.lower(), Field(number, frame.__name__, 1))
        envelope.field[-1].oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, field: Field) -> None:
    proto = message.field.add(name=name, number=field.number, label=_Proto.LABEL_OPTIONAL)
    kind = field.kind
    if kind.startswith("map<"):
        entry = message.nested_type.add(name=name.title() + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_Proto.LABEL_OPTIONAL, type=_Proto.TYPE_STRING)
        entry.field.add(name="value", number=2, label=_Proto.LABEL_OPTIONAL, type=_Proto.TYPE_STRING)
        proto.label, proto.type = _Proto.LABEL_REPEATED, _Proto.TYPE_MESSAGE
        proto.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.startswith("repeated "):
        proto.label = _Proto.LABEL_REPEATED
        kind = kind.removeprefix("repeated ")
    if kind in _TYPES:
        proto.type = _TYPES[kind]
    else:
        proto.type = _Proto.TYPE_ENUM if kind == "Kind" else _Proto.TYPE_MESSAGE
        proto.type_name = f".{PACKAGE}.{kind}"
