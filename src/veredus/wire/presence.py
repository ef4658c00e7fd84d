"""The records of worker processes: encodes ServerInfo and WorkerInfo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from veredus.model.message import TaskMessage
from veredus.wire.messages import clean
from veredus.wire.schema import message_class
from veredus.wire.times import clamped

PAYLOAD_SHOWN = 1000
"""The most bytes of a payload in a worker's record; the task has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One worker process, as asynqmon and `asynq server ls` show it."""

    host: str
    pid: int
    server_id: str
    concurrency: int
    queues: Mapping[str, int]
    strict_priority: bool
    status: str
    started_at: float
    active_worker_count: int
    startable: str = ""
    """Its types and groups, in the form of `wire.types.shown`; not part of Asynq's record."""
    version: str = ""
    """Of Veredus. Like the memory, not part of Asynq's record."""
    memory_mb: int = 0


def encode_server(record: ServerRecord) -> bytes:
    info = message_class("ServerInfo")(
        host=record.host,
        pid=record.pid,
        server_id=record.server_id,
        concurrency=record.concurrency,
        queues=dict(record.queues),
        strict_priority=record.strict_priority,
        status=record.status,
        active_worker_count=record.active_worker_count,
    )
    _set_time(info.start_time, record.started_at)
    data: bytes = info.SerializeToString(deterministic=True)
    return data


def encode_worker(
    host: str,
    pid: int,
    server_id: str,
    message: TaskMessage,
    started_at: float,
    deadline: float,
    payload: bytes | None = None,
) -> bytes:
    """One running task; Go's tools show its start and deadline only from here. `payload` is shown instead of the
    message's own."""
    info = message_class("WorkerInfo")(
        host=host,
        pid=pid,
        server_id=server_id,
        task_id=clean(message.id),
        task_type=message.type,
        task_payload=(message.payload if payload is None else payload)[:PAYLOAD_SHOWN],
        queue=clean(message.queue),
    )
    _set_time(info.start_time, started_at)
    _set_time(info.deadline, deadline)
    data: bytes = info.SerializeToString(deterministic=True)
    return data


def _set_time(field: object, unix: float) -> None:
    seconds, fraction = divmod(clamped(unix), 1)
    field.seconds = int(seconds)  # type: ignore[attr-defined]
    field.nanos = int(fraction * 1e9)  # type: ignore[attr-defined]
    field.SetInParent()  # type: ignore[attr-defined]
