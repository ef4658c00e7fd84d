"""A task as it is stored and sent: the fields of Asynq's TaskMessage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from veredus.model.options import DEFAULT_TIMEOUT


@dataclass(kw_only=True)
class TaskMessage:
    """One task. Units as on the wire: whole seconds and Unix seconds; zero and empty mean "none".

    Without slots: a worker makes one for each task it runs, and copying a dict is quicker than filling fifteen slots.
    """

    type: str
    payload: bytes = b""
    id: str
    queue: str
    retry: int = 0
    """The greatest number of retries (not of attempts)."""
    retried: int = 0
    error_msg: str = ""
    timeout: int = 0
    deadline: int = 0
    unique_key: str = ""
    last_failed_at: int = 0
    retention: int = 0
    completed_at: int = 0
    group_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def deadline_of(message: TaskMessage, now: float) -> float:
    """When an attempt that begins now must end: the earlier of timeout and deadline."""
    if message.timeout and message.deadline:
        return min(now + message.timeout, float(message.deadline))
    if message.deadline:
        return float(message.deadline)
    return now + (message.timeout or DEFAULT_TIMEOUT)
