"""What the inspector returns, as values. `as_dict()` has the names and forms of Asynq's own Inspector, for JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = -62135596800 * SECOND, 253402300799 * SECOND
"""The years 1 to 9999. Instants outside of them, written by other programs, are shown as the first or last second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task. Instants are Unix seconds as stored, 0 for none; the properties give them as datetimes."""

    id: str
    queue: str
    type: str
    state: str
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    max_retry: int = 0
    retried: int = 0
    last_error: str = ""
    traceback: str = ""
    """Of the last failure, at most 8 KiB. Only `inspector.task()` reads it."""
    last_failed: int = 0
    timeout: int = 0
    deadline: int = 0
    unique_key: str = ""
    retention: int = 0
    completed: int = 0
    next_ms: int = 0
    """When it is due, in milliseconds; now for a pending task; 0 for none."""
    waiting_for: str = ""
    """Why a scheduled task without a due time waits: `order key account-42` or `limit queue`; and what durable tasks
    wait for: `event approved:7 until ...`."""
    waiting_since: int = 0
    """Since when a durable task waits for it, in Unix milliseconds."""
    result: bytes = b""
    is_orphaned: bool = False
    """Active, but without a lease."""
    owner: str = ""
    """The Veredus worker and batch that hold the task, if it runs in one."""
    score: int = 0
    """In its sorted set: when it is due, was archived, ends its retention, or joined its group."""
    error_group: str = ""
    """The group of its last error; only a search for one reads it."""
    is_redacted: bool = False
    """The app's `redact` changed its payload."""
    seen_at: int = -1
    """In a list: its position, counted from the end from which tasks are taken; -1 elsewhere."""

    @property
    def next_process_at(self) -> datetime | None:
        return as_datetime(self.next_ms * 1_000_000)

    @property
    def last_failed_at(self) -> datetime | None:
        return as_datetime(self.last_failed * SECOND)

    @property
    def completed_at(self) -> datetime | None:
        return as_datetime(self.completed * SECOND)

    @property
    def deadline_at(self) -> datetime | None:
        return as_datetime(self.deadline * SECOND)

    def has_error(self, part: str) -> bool:
        """Whether the last error contains this; case is ignored."""
        return part.casefold() in self.last_error.casefold()

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "queue": self.queue,
            "type": self.type,
            "payload": content(self.payload),
            "headers": dict(self.headers) or None,
            "state": self.state,
            "max_retry": self.max_retry,
            "retried": self.retried,
            "last_err": self.last_error,
            "last_failed_at": instant_text(self.last_failed * SECOND),
            "timeout_s": self.timeout,
            "deadline": instant_text(self.deadline * SECOND),
            "group": self.group,
            "next_process_at": instant_text(self.next_ms * 1_000_000),
            "is_orphaned": self.is_orphaned,
            "retention_s": self.retention,
            "completed_at": instant_text(self.completed * SECOND),
            "result": content(self.result),
            **({"waiting_for": self.waiting_for} if self.waiting_for else {}),
            **({"waiting_since": instant_text(self.waiting_since * 1_000_000)} if self.waiting_since else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """One queue at one moment."""

    queue: str
    pending: int
    active: int
    scheduled: int
    retry: int
    archived: int
    completed: int
    aggregating: int
    groups: int
    processed: int
    """Today, in UTC, failed ones included."""
    failed: int
    processed_total: int
    failed_total: int
    paused: bool
    latency_ns: int
    """The longest wait of the next pending task and of those that wait for their order key or for a limit."""
    timestamp_ns: int
    memory_usage: int = 0
    """Bytes, from a sample; 0 when it was not asked for."""

    @property
    def size(self) -> int:
        """All tasks, whatever their state."""
        return (
            self.pending + self.active + self.scheduled + self.retry + self.archived + self.completed + self.aggregating
        )

    @property
    def latency(self) -> timedelta:
        return timedelta(microseconds=min(self.latency_ns, _LATEST) / 1000)

    def as_dict(self) -> dict[str, Any]:
        names = (
            "queue memory_usage size groups pending active scheduled retry archived completed aggregating "
            "processed failed processed_total failed_total paused"
        )
        values: dict[str, Any] = {name: getattr(self, name) for name in names.split()}
        values["latency_ms"] = self.latency_ns / 1_000_000
        values["timestamp"] = instant_text(self.timestamp_ns)
        return values


@dataclass(frozen=True, slots=True)
class DailyStats:
    """One day of one queue, in UTC. Processed includes failed."""

    queue: str
    date: str
    processed: int
    failed: int

    def as_dict(self) -> dict[str, Any]:
        return {"queue": self.queue, "date": self.date, "processed": self.processed, "failed": self.failed}


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group of waiting tasks."""

    group: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {"group": self.group, "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One running task, as its worker process shows it."""

    task_id: str
    task_type: str
    task_payload: bytes
    queue: str
    started_ns: int
    deadline_ns: int
    server_id: str = ""

    @property
    def started(self) -> datetime | None:
        return as_datetime(self.started_ns)

    @property
    def deadline(self) -> datetime | None:
        return as_datetime(self.deadline_ns)

    def as_dict(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "task_payload": content(self.task_payload),
            "queue": self.queue,
            "started": instant_text(self.started_ns),
            "deadline": instant_text(self.deadline_ns),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """One worker process, Veredus's or Go's."""

    id: str
    host: str
    pid: int
    concurrency: int
    queues: Mapping[str, int]
    strict_priority: bool
    status: str
    started_ns: int
    active_workers: tuple[WorkerInfo, ...] = ()
    version: str = ""
    """Of Veredus; empty for a Go server, and for versions that do not say it."""
    memory_mb: int = 0
    asked: str = ""
    """What it is asked to do: `quiet`, `stop` or nothing."""

    @property
    def started(self) -> datetime | None:
        return as_datetime(self.started_ns)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "host": self.host,
            "pid": self.pid,
            "concurrency": self.concurrency,
            "queues": dict(self.queues),
            "strict_priority": self.strict_priority,
            "status": self.status,
            "started": instant_text(self.started_ns),
            "active_workers": [worker.as_dict() for worker in self.active_workers],
            **({"version": self.version, "memory_mb": self.memory_mb, "asked": self.asked} if self.version else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerEntryInfo:
    """One schedule of a running scheduler."""

    id: str
    spec: str
    task_type: str
    task_payload: bytes
    opts: tuple[str, ...]
    next_ns: int
    prev_ns: int
    """0 if it never fired."""
    paused: bool = False

    @property
    def queue(self) -> str:
        """The queue of its tasks."""
        for text in self.opts:
            if match := re.fullmatch(r'Queue\("(.*)"\)', text):
                return match[1]
        return "default"

    @property
    def next(self) -> datetime | None:
        return as_datetime(self.next_ns)

    @property
    def prev(self) -> datetime | None:
        return as_datetime(self.prev_ns)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "spec": self.spec,
            "task_type": self.task_type,
            "task_payload": content(self.task_payload),
            "opts": list(self.opts),
            "next": instant_text(self.next_ns),
            "prev": instant_text(self.prev_ns),
        }


@dataclass(frozen=True, slots=True)
class EnqueueEvent:
    """One firing of a schedule."""

    task_id: str
    enqueued_ns: int

    @property
    def enqueued_at(self) -> datetime | None:
        return as_datetime(self.enqueued_ns)

    def as_dict(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "enqueued_at": instant_text(self.enqueued_ns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """One lease: who has a task, and for how long yet."""

    queue: str
    task_id: str
    task_type: str
    owner: str
    """`<beginning of the worker's id>:<batch number>`; empty for a worker that is not Veredus's."""
    until: int
    """Unix seconds."""
    seconds_left: float
    """Below 0 once it has expired."""
    ours: bool
    """Written by Veredus, hence by the clock of Redis."""

    @property
    def expired(self) -> bool:
        return self.seconds_left <= 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "task_id": self.task_id,
            "task_type": self.task_type,
            "owner": self.owner,
            "until": instant_text(self.until * SECOND),
            "seconds_left": self.seconds_left,
            "ours": self.ours,
        }


@dataclass(frozen=True, slots=True)
class ClusterNodeInfo:
    """One node of a cluster that has a queue's slot."""

    id: str
    address: str

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "address": self.address}


def content(data: bytes) -> dict[str, str] | None:
    """Bytes for JSON: always as base64, and as text when they are printable text; None when there are none."""
    if not data:
        return None
    shown = {"b64": base64.b64encode(data).decode()}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return shown
    if all(char.isprintable() or char in "\t\r\n" for char in text):
        shown["utf8"] = text
    return shown


def instant_text(nanoseconds: int) -> str | None:
    """As Go writes it in JSON: RFC 3339 in UTC, with as many decimals as are needed; None for 0."""
    if not nanoseconds:
        return None
    seconds, fraction = divmod(max(_EARLIEST, min(nanoseconds, _LATEST)), SECOND)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    decimals = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{text}{decimals}Z"


def as_datetime(nanoseconds: int) -> datetime | None:
    if not nanoseconds:
        return None
    return _EPOCH + timedelta(microseconds=max(_EARLIEST, min(nanoseconds, _LATEST)) // 1000)
