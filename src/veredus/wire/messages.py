"""Encodes and decodes TaskMessage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from veredus.model.message import TaskMessage
from veredus.model.verdict import CANCELED, write_failure
from veredus.wire.schema import MESSAGES, message_class
from veredus.wire.varint import varint

_FIELDS = tuple(MESSAGES["TaskMessage"])
_SCALARS = tuple(name for name in _FIELDS if name != "headers")


class UndecodableMessage(ValueError):
    """Bytes that are not a TaskMessage."""


def encode_task(message: TaskMessage) -> bytes:
    """Protobuf bytes, fields in ascending order, without zero and empty ones, as Go writes them."""
    record = message_class("TaskMessage")(
        type=clean(message.type),
        payload=message.payload,
        id=clean(message.id),
        queue=clean(message.queue),
        retry=message.retry,
        retried=message.retried,
        error_msg=clean(message.error_msg),
        timeout=message.timeout,
        deadline=message.deadline,
        unique_key=clean(message.unique_key),
        last_failed_at=message.last_failed_at,
        retention=message.retention,
        completed_at=message.completed_at,
        group_key=clean(message.group_key),
    )
    if message.headers:
        record.headers.update(message.headers)
    data: bytes = record.SerializeToString(deterministic=True)
    return data


class MessageTemplate:
    """Encodes many messages that differ only in id and payload: everything else is encoded once.

    The fields of a protobuf message follow each other; these two are between the type and all others.
    """

    __slots__ = ("_head", "_tail")

    def __init__(self, pattern: TaskMessage) -> None:
        self._head = encode_task(replace(_EMPTY, type=pattern.type))
        self._tail = encode_task(replace(pattern, type="", payload=b"", id=""))

    def fill(self, task_id: str, payload: bytes) -> bytes:
        name = task_id.encode()
        if payload:
            return b"%b\x12%b%b\x1a%b%b%b" % (
                self._head,
                varint(len(payload)),
                payload,
                varint(len(name)),
                name,
                self._tail,
            )
        return b"%b\x1a%b%b%b" % (self._head, varint(len(name)), name, self._tail)


_EMPTY = TaskMessage(type="", id="", queue="")


KEPT_FOR_WAITERS = 60
"""Seconds for which a task is kept that Go may run while a producer waits for it; below 128."""
_FOR_WAITERS = bytes((96, 128 + KEPT_FOR_WAITERS, 0))


def is_kept_for_waiters(data: bytes) -> bool:
    """Whether the retention of this message is the one that `lua/result/await.lua` gave it, and not its sender."""
    return data.endswith(_FOR_WAITERS)


def decode_task(data: bytes) -> TaskMessage:
    """The message in these bytes. Raises UndecodableMessage, also for bytes that parse but have no type."""
    return _decode_alike(data) or _decode(data)


def _decode(data: bytes) -> TaskMessage:
    record = message_class("TaskMessage")()
    try:
        record.ParseFromString(data)
    except Exception as exc:  # foreign bytes; each runtime of protobuf raises errors of its own
        raise UndecodableMessage(f"not a TaskMessage: {exc}") from exc
    if not record.type or not record.id:
        raise UndecodableMessage("not a TaskMessage: it has no type or no id")
    return TaskMessage(
        type=record.type,
        payload=record.payload,
        id=record.id,
        queue=record.queue,
        retry=record.retry,
        retried=record.retried,
        error_msg=record.error_msg,
        timeout=record.timeout,
        deadline=record.deadline,
        unique_key=record.unique_key,
        last_failed_at=record.last_failed_at,
        retention=record.retention,
        completed_at=record.completed_at,
        group_key=record.group_key,
        headers=dict(record.headers) if record.headers else _NO_HEADERS,
    )


def _decode_alike(data: bytes) -> TaskMessage | None:
    """Decodes a message whose last fields were decoded before: only type, payload and id are new, and they come first.
    Returns None if the bytes have another layout; then protobuf decodes them.

    Most tasks of a queue are alike in this way, and this takes less than half the time.
    """
    size = len(data)
    try:
        if data[0] != _TYPE or data[1] > 127:
            return None
        at = 2 + data[1]
        kind = data[2:at]
        payload = b""
        if data[at] == _PAYLOAD:  # as in `_id_in`, which would cost a call
            length, shift, at = data[at + 1], 7, at + 2
            if length > 127:
                length &= 127
                while True:
                    digit = data[at]
                    length |= (digit & 127) << shift
                    shift += 7
                    at += 1
                    if digit < 128:
                        break
            payload = data[at : at + length]
            at += length
        if data[at] != _ID or data[at + 1] > 127:
            return None
        end = at + 2 + data[at + 1]
        if end > size:
            return None
        tail = data[end:]
        alike = _seen.get(tail)
        if alike is None:
            alike = _remember(tail)
            if alike is None:
                return None
        name, task_id = kind.decode(), data[at + 2 : end].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    if not name or not task_id:
        return None
    values = alike.copy()
    values["type"], values["payload"], values["id"] = name, payload, task_id
    if values["headers"]:
        values["headers"] = values["headers"].copy()
    message = _new_message(TaskMessage)
    message.__dict__ = values
    return message


_TYPE, _PAYLOAD, _ID = 0x0A, 0x12, 0x1A
_MOST_SEEN, _LONGEST_SEEN = 256, 256
_seen: dict[bytes, dict[str, Any]] = {}
_new_message = object.__new__


def _remember(tail: bytes) -> dict[str, Any] | None:
    """The fields at the end of a message; None if these bytes are not exactly that. Ends that never repeat (a lock,
    a deadline, an error) evict each other and cost only their own decoding."""
    record = message_class("TaskMessage")()
    try:
        record.ParseFromString(tail)
    except Exception:  # as above
        return None
    if record.type or record.id or record.payload:
        return None
    values = {name: getattr(record, name) for name in _SCALARS}
    values["headers"] = dict(record.headers) if record.headers else _NO_HEADERS
    if len(tail) <= _LONGEST_SEEN:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[tail] = values
    return values


def encode_completed(data: bytes, message: TaskMessage) -> bytes:
    """`encode_task` of a message that was decoded from `data` and has got another retention and a time of completion.
    What follows the id is the same for many tasks that end within one second, and is encoded once."""
    found = _id_in(data)
    if found is None or data[found[0] : found[1]] != message.id.encode():
        return encode_task(message)
    head, key = data[: found[1]], (data[found[1] :], message.queue, message.retention, message.completed_at)
    tail = _completed.get(key)
    if tail is not None:
        return head + tail
    encoded = encode_task(message)
    if encoded.startswith(head) and len(key[0]) <= _LONGEST_SEEN:
        if len(_completed) >= _MOST_SEEN:
            _completed.clear()
        _completed[key] = encoded[len(head) :]
    return encoded


_completed: dict[tuple[bytes, str, int, int], bytes] = {}


def _id_in(data: bytes) -> tuple[int, int] | None:
    """Where the id is in a message that begins with type, payload and id; None if it does not."""
    try:
        at = 2 + data[1]
        if data[0] != _TYPE or data[1] > 127:
            return None
        if data[at] == _PAYLOAD:
            length, shift, at = data[at + 1] & 127, 7, at + 1
            while data[at] > 127:
                at += 1
                length |= (data[at] & 127) << shift
                shift += 7
            at += 1 + length
        if data[at] != _ID or data[at + 1] > 127:
            return None
        end = at + 2 + data[at + 1]
    except IndexError:
        return None
    return (at + 2, end) if end <= len(data) else None


def cancelled(data: bytes, now: float) -> bytes:
    """The same message, failed with the error that Asynq gives for a cancelled task. Undecodable bytes are not
    changed."""
    try:
        message = decode_task(data)
    except UndecodableMessage:
        return data
    return encode_task(write_failure(message, CANCELED, now, counts=False))


def clean(text: str) -> str:
    """Text that protobuf accepts: a lone surrogate would make it impossible to store the message."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


_NO_HEADERS: dict[str, str] = {}


def as_dict(name: str, data: bytes) -> dict[str, Any]:
    """The names of the fields present in any of Asynq's messages, for inspection and tests."""
    record = message_class(name)()
    record.ParseFromString(data)
    return {field.name: value for field, value in record.ListFields()}
