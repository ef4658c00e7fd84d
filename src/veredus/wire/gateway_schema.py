"""The gateway's protobuf messages as data, with the limits of every field. `gateway.proto` describes the same for
others."""

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


class SchemaField(NamedTuple):
    """Number and type as in a .proto file; the minimum and maximum of the value (or of its length)."""

    number: int
    kind: str
    most: int
    least: int = 0


MESSAGES: dict[str, dict[str, SchemaField]] = {
    "Cursor": {
        "epoch": SchemaField(1, "string", 32),
        "seq": SchemaField(2, "uint64", MAX_NUMBER),
        "ts": SchemaField(3, "uint64", MAX_NUMBER),
    },
    "Resume": {
        "sid": SchemaField(1, "string", 128, 1),
        "secret": SchemaField(2, "string", 256),
        "cursor": SchemaField(3, "Cursor", 1),
    },
    "Limits": {
        "window_messages": SchemaField(1, "uint32", 2**31),
        "window_bytes": SchemaField(2, "uint32", 2**31),
        "max_frame": SchemaField(3, "uint32", 2**31),
        "max_open_requests": SchemaField(4, "uint32", 2**31),
    },
    "OpenRequest": {
        "rid": SchemaField(1, "uint64", MAX_NUMBER, 1),
        "state": SchemaField(2, "string", 16),
    },
    "Hello": {
        "version": SchemaField(1, "uint32", 1_000_000),
        "token": SchemaField(2, "string", 16_384),
        "resume": SchemaField(3, "Resume", 1),
        "window_messages": SchemaField(4, "uint32", 2**31),
        "window_bytes": SchemaField(5, "uint32", 2**31),
        "client": SchemaField(6, "string", 256),
        "rid_floor": SchemaField(7, "uint64", MAX_NUMBER),
    },
    "Request": {
        "rid": SchemaField(1, "uint64", MAX_NUMBER, 1),
        "action": SchemaField(2, "string", 256, 1),
        "body": SchemaField(3, "bytes", MAX_BODY),
        "deadline_ms": SchemaField(4, "uint64", MILLISECONDS),
        "no_reply": SchemaField(5, "bool", 1),
        "serial": SchemaField(6, "bool", 1),
        "encoding": SchemaField(7, "string", 8),
    },
    "Ack": {
        "seq": SchemaField(1, "uint64", MAX_NUMBER),
        "rid_floor": SchemaField(2, "uint64", MAX_NUMBER),
    },
    "Cancel": {"rid": SchemaField(1, "uint64", MAX_NUMBER, 1)},
    "Pong": {
        "echo": SchemaField(1, "uint64", MAX_NUMBER),
        "seq": SchemaField(2, "uint64", MAX_NUMBER),
    },
    "Join": {"group": SchemaField(1, "string", 256, 1)},
    "Leave": {"group": SchemaField(1, "string", 256, 1)},
    "Auth": {"token": SchemaField(1, "string", 16_384)},
    "Bye": {"code": SchemaField(1, "uint32", 10_000)},
    "Welcome": {
        "sid": SchemaField(1, "string", 128, 1),
        "secret": SchemaField(2, "string", 256),
        "result": SchemaField(3, "string", 16, 1),
        "reason": SchemaField(4, "string", 64),
        "cursor": SchemaField(5, "Cursor", 1),
        "top": SchemaField(6, "uint64", MAX_NUMBER),
        "node": SchemaField(7, "string", 256),
        "heartbeat_ms": SchemaField(8, "uint64", MILLISECONDS),
        "pong_ms": SchemaField(9, "uint64", MILLISECONDS),
        "session_ttl_ms": SchemaField(10, "uint64", MILLISECONDS),
        "limits": SchemaField(11, "Limits", 1),
        "open": SchemaField(12, "repeated OpenRequest", 4096),
    },
    "Message": {
        "seq": SchemaField(1, "fixed64", MAX_NUMBER),
        "ts": SchemaField(2, "fixed64", MAX_NUMBER),
        "kind": SchemaField(3, "Kind", max(Kind), min(Kind)),
        "rid": SchemaField(4, "uint64", MAX_NUMBER),
        "type": SchemaField(5, "string", 256),
        "title": SchemaField(6, "string", 1024),
        "content": SchemaField(7, "string", 16_384),
        "metadata": SchemaField(8, "map<string, string>", 64),
        "body": SchemaField(9, "bytes", MAX_BODY),
        "code": SchemaField(10, "uint32", 10_000),
        "error": SchemaField(11, "string", 4096),
        "group": SchemaField(12, "string", 256),
        "sync_hint": SchemaField(13, "uint32", 2),
        "bind_client_seq_id": SchemaField(14, "uint64", MAX_NUMBER),
        "create_time": SchemaField(15, "uint64", MAX_NUMBER),
        "encoding": SchemaField(16, "string", 8),
    },
    "Accept": {"rid": SchemaField(1, "uint64", MAX_NUMBER, 1)},
    "Reject": {
        "rid": SchemaField(1, "uint64", MAX_NUMBER, 1),
        "code": SchemaField(2, "uint32", 10_000),
        "retryable": SchemaField(3, "bool", 1),
        "retry_after_ms": SchemaField(4, "uint64", MILLISECONDS),
        "error": SchemaField(5, "string", 4096),
    },
    "Ping": {
        "echo": SchemaField(1, "uint64", MAX_NUMBER),
        "top": SchemaField(2, "uint64", MAX_NUMBER),
        "degraded": SchemaField(3, "bool", 1),
        "token_expires_ms": SchemaField(4, "uint64", MILLISECONDS),
    },
    "GoAway": {
        "reconnect_within_ms": SchemaField(1, "uint64", MILLISECONDS),
        "reason": SchemaField(2, "string", 256),
        "hint": SchemaField(3, "string", 1024),
    },
    "Gap": {
        "first": SchemaField(1, "uint64", MAX_NUMBER, 1),
        "last": SchemaField(2, "uint64", MAX_NUMBER, 1),
        "reason": SchemaField(3, "string", 64),
        "ts": SchemaField(4, "uint64", MAX_NUMBER),
    },
    "Close": {
        "code": SchemaField(1, "uint32", 10_000),
        "reason": SchemaField(2, "string", 256),
        "retry_after_ms": SchemaField(3, "uint64", MILLISECONDS),
    },
    "Volatile": {
        "type": SchemaField(1, "string", 256),
        "body": SchemaField(2, "bytes", MAX_BODY),
        "encoding": SchemaField(3, "string", 8),
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
        _add_field(envelope, frame.__name__.lower(), SchemaField(number, frame.__name__, 1))
        envelope.field[-1].oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, field: SchemaField) -> None:
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
