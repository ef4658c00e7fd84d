"""A second, tiny protobuf codec for Asynq's messages, so that the one under test is not its own judge."""

from __future__ import annotations

from typing import Any

_TIME = {1: ("seconds", "int"), 2: ("nanos", "int")}
SCHEMAS: dict[str, dict[int, tuple[str, Any]]] = {
    "TaskMessage": {
        1: ("type", "text"),
        2: ("payload", "bytes"),
        3: ("id", "text"),
        4: ("queue", "text"),
        5: ("retry", "int"),
        6: ("retried", "int"),
        7: ("error_msg", "text"),
        8: ("timeout", "int"),
        9: ("deadline", "int"),
        10: ("unique_key", "text"),
        11: ("last_failed_at", "int"),
        12: ("retention", "int"),
        13: ("completed_at", "int"),
        14: ("group_key", "text"),
        15: ("headers", {1: ("key", "text"), 2: ("value", "text")}),
    },
    "ServerInfo": {
        1: ("host", "text"),
        2: ("pid", "int"),
        3: ("server_id", "text"),
        4: ("concurrency", "int"),
        5: ("queues", {1: ("key", "text"), 2: ("value", "int")}),
        6: ("strict_priority", "bool"),
        7: ("status", "text"),
        8: ("start_time", _TIME),
        9: ("active_worker_count", "int"),
    },
    "WorkerInfo": {
        1: ("host", "text"),
        2: ("pid", "int"),
        3: ("server_id", "text"),
        4: ("task_id", "text"),
        5: ("task_type", "text"),
        6: ("task_payload", "bytes"),
        7: ("queue", "text"),
        8: ("start_time", _TIME),
        9: ("deadline", _TIME),
    },
}
MAPS = ("headers", "queues")


def decode(name: str, data: bytes) -> tuple[dict[str, Any], list[int]]:
    """The fields present on the wire, and their numbers in the order of the bytes."""
    return _decode(SCHEMAS[name], data)


def encode(name: str, fields: dict[str, Any]) -> bytes:
    """As Go does: ascending numbers, zero and empty left out; map entries in the order given."""
    return _encode(SCHEMAS[name], fields)


def _decode(schema: dict[int, tuple[str, Any]], data: bytes) -> tuple[dict[str, Any], list[int]]:
    fields: dict[str, Any] = {}
    order: list[int] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        name, kind = schema[number]
        order.append(number)
        if wire_type == 0:
            raw, at = _read_varint(data, at)
            signed = raw - (1 << 64) if raw >> 63 else raw
            assert kind in ("int", "bool"), f"{name} is a varint"
            fields[name] = bool(signed) if kind == "bool" else signed
            continue
        assert wire_type == 2, f"{name} has wire type {wire_type}"
        size, at = _read_varint(data, at)
        chunk, at = data[at : at + size], at + size
        assert len(chunk) == size, f"{name} is cut off"
        if name in MAPS:
            entry, _ = _decode(kind, chunk)
            assert set(entry) <= {"key", "value"}
            fields.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "" if name == "headers" else 0)
        elif isinstance(kind, dict):
            fields[name] = {"seconds": 0, "nanos": 0} | _decode(kind, chunk)[0]
        else:
            fields[name] = chunk if kind == "bytes" else chunk.decode()
    return fields, order


def _encode(schema: dict[int, tuple[str, Any]], fields: dict[str, Any]) -> bytes:
    out = b""
    unknown = set(fields) - {name for name, _ in schema.values()}
    assert not unknown, unknown
    for number, (name, kind) in sorted(schema.items()):
        value = fields.get(name)
        if name in MAPS:
            for key, item in (value or {}).items():
                # A map entry always has both its key and its value, also empty ones.
                entry = _chunk(1, key.encode())
                entry += _chunk(2, item.encode()) if isinstance(item, str) else b"\x10" + _varint(item)
                out += _chunk(number, entry)
        elif isinstance(kind, dict):
            if value is not None:
                out += _chunk(number, _encode(kind, value))
        elif not value:
            continue
        elif kind in ("int", "bool"):
            out += _varint(number << 3) + _varint(int(value) & ((1 << 64) - 1))
        else:
            out += _chunk(number, value.encode() if kind == "text" else value)
    return out


def _chunk(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
