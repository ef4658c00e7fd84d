"""Decodes Redis data into the values that the inspector returns."""

from __future__ import annotations

from typing import Any

from veredus.model.info import SECOND, EnqueueEvent, SchedulerEntryInfo, ServerInfo, TaskInfo, WorkerInfo
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.wire.schema import message_class
from veredus.wire.times import NEVER_SECONDS


def task_info(queue: str, task_id: str, data: bytes, state: str, result: bytes = b"", **place: Any) -> TaskInfo:
    """A task from its message. If the message cannot be decoded, its bytes are the payload and the reason is the
    error."""
    try:
        message = decode_task(data)
    except UndecodableMessage as exc:
        return TaskInfo(
            id=task_id,
            queue=queue,
            type="undecodable",
            state=state,
            payload=data,
            last_error=str(exc),
            result=result,
            **place,
        )
    return TaskInfo(
        id=task_id,
        queue=queue,
        type=message.type,
        state=state,
        payload=message.payload,
        headers=message.headers,
        group=message.group_key,
        max_retry=message.retry,
        retried=message.retried,
        last_error=message.error_msg,
        last_failed=message.last_failed_at,
        timeout=message.timeout,
        deadline=message.deadline,
        unique_key=message.unique_key,
        retention=message.retention,
        completed=message.completed_at,
        result=result,
        **place,
    )


def server_info(data: bytes) -> ServerInfo | None:
    record = _parsed("ServerInfo", data)
    if record is None:
        return None
    return ServerInfo(
        id=record.server_id,
        host=record.host,
        pid=record.pid,
        concurrency=record.concurrency,
        queues=dict(sorted(record.queues.items())),
        strict_priority=record.strict_priority,
        status=record.status,
        started_ns=_nanoseconds(record.start_time),
    )


def worker_info(data: bytes) -> WorkerInfo | None:
    record = _parsed("WorkerInfo", data)
    if record is None:
        return None
    return WorkerInfo(
        task_id=record.task_id,
        task_type=record.task_type,
        task_payload=record.task_payload,
        queue=record.queue,
        started_ns=_nanoseconds(record.start_time),
        deadline_ns=_nanoseconds(record.deadline),
        server_id=record.server_id,
    )


def scheduler_entry(data: bytes) -> SchedulerEntryInfo | None:
    record = _parsed("SchedulerEntry", data)
    if record is None:
        return None
    return SchedulerEntryInfo(
        id=record.id,
        spec=record.spec,
        task_type=record.task_type,
        task_payload=record.task_payload,
        opts=tuple(record.enqueue_options),
        next_ns=_nanoseconds(record.next_enqueue_time),
        prev_ns=_nanoseconds(record.prev_enqueue_time),
    )


def enqueue_event(data: bytes) -> EnqueueEvent | None:
    record = _parsed("SchedulerEnqueueEvent", data)
    return None if record is None else EnqueueEvent(record.task_id, _nanoseconds(record.enqueue_time))


def _parsed(name: str, data: bytes) -> Any:
    """The message, or None for invalid bytes: Go's tools skip such a record too."""
    record = message_class(name)()
    try:
        record.ParseFromString(data)
    except Exception:  # foreign bytes; each runtime of protobuf raises errors of its own
        return None
    return record


def _nanoseconds(stamp: Any) -> int:
    return 0 if stamp.seconds == NEVER_SECONDS else stamp.seconds * SECOND + max(0, stamp.nanos)
