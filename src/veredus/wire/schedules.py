"""Schedules as Asynq's tools read them: encodes and decodes SchedulerEntry and SchedulerEnqueueEvent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veredus.wire.schema import message_class
from veredus.wire.times import NEVER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """One schedule, as `asynq cron ls` lists it. Instants are Unix seconds; None means never."""

    id: str
    spec: str
    task_type: str
    task_payload: bytes
    enqueue_options: tuple[str, ...] = ()
    next_at: float | None = None
    previous_at: float | None = None


@dataclass(frozen=True, slots=True)
class EnqueueRecord:
    """One tick that became a task."""

    task_id: str
    at: float


def encode_entry(record: EntryRecord) -> bytes:
    entry = message_class("SchedulerEntry")(
        id=record.id,
        spec=record.spec,
        task_type=record.task_type,
        task_payload=record.task_payload,
        enqueue_options=record.enqueue_options,
    )
    _set_time(entry.next_enqueue_time, record.next_at)
    _set_time(entry.prev_enqueue_time, record.previous_at)
    data: bytes = entry.SerializeToString(deterministic=True)
    return data


def decode_entry(data: bytes) -> EntryRecord:
    entry = message_class("SchedulerEntry")()
    entry.ParseFromString(data)
    return EntryRecord(
        id=entry.id,
        spec=entry.spec,
        task_type=entry.task_type,
        task_payload=entry.task_payload,
        enqueue_options=tuple(entry.enqueue_options),
        next_at=_get_time(entry.next_enqueue_time),
        previous_at=_get_time(entry.prev_enqueue_time),
    )


def encode_event(event: EnqueueRecord) -> bytes:
    record = message_class("SchedulerEnqueueEvent")(task_id=event.task_id)
    _set_time(record.enqueue_time, event.at)
    data: bytes = record.SerializeToString(deterministic=True)
    return data


def decode_event(data: bytes) -> EnqueueRecord:
    record = message_class("SchedulerEnqueueEvent")()
    record.ParseFromString(data)
    return EnqueueRecord(record.task_id, _get_time(record.enqueue_time) or 0.0)


def _set_time(field: Any, unix: float | None) -> None:
    seconds, fraction = divmod(NEVER_SECONDS if unix is None else unix, 1)
    field.seconds = int(seconds)
    field.nanos = int(fraction * 1e9)
    field.SetInParent()


def _get_time(field: Any) -> float | None:
    return None if field.seconds == NEVER_SECONDS else field.seconds + field.nanos / 1e9
