"""What a handler for raw tasks gets: the task as it arrived."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from veredus.model.message import TaskMessage


class Job:
    """One delivered task: its type, payload and headers, for pattern handlers and middleware."""

    __slots__ = ("message",)

    def __init__(self, message: TaskMessage) -> None:
        self.message = message

    @property
    def id(self) -> str:
        """The task's id."""
        return self.message.id

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.message.queue

    @property
    def type(self) -> str:
        """Its type, as on the wire."""
        return self.message.type

    @property
    def payload(self) -> bytes:
        """Its payload as it arrived."""
        return self.message.payload

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender gave along."""
        return self.message.headers

    @property
    def retried(self) -> int:
        """Retries so far: 0 in the first attempt."""
        return self.message.retried

    @property
    def max_retry(self) -> int:
        """How often it may be retried."""
        return self.message.retry

    def json(self) -> Any:
        """The payload, decoded from JSON."""
        return json.loads(self.message.payload)

    def __repr__(self) -> str:
        return f"Job(type={self.type!r}, id={self.id!r}, queue={self.queue!r})"
