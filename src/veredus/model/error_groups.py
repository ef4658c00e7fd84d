"""Errors grouped by the type of the task, their class and the place that raised them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from veredus.model.attempts import AttemptInfo
from veredus.model.info import SECOND, instant_text

MOST_SHOWN = 300
"""Bytes of the last error's text that are kept with its group."""


def group_id(task_type: str, error_class: str, place: str) -> str:
    """The name of a group: the same in every process and every queue."""
    text = "\0".join((task_type, error_class, place)).encode("utf-8", "replace")
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:12]


def class_in(attempt: AttemptInfo) -> str:
    """What a group is named by: the class of the error, or how the attempt ended if there was none."""
    return attempt.error_class or attempt.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroupInfo:
    """Errors of one type, class and place, over all queues that were asked for."""

    id: str
    type: str
    error_class: str
    """Its class, or how the attempt ended if no error was raised: `lease lost`."""
    place: str
    error: str
    """The text of the last one."""
    count: int
    """In the window that was asked for."""
    first: int
    """Unix seconds."""
    last: int
    queues: tuple[str, ...]
    task_id: str
    """The task of the last one."""
    queue: str
    """Its queue."""
    series: Sequence[tuple[int, int]]
    """How many there were in each span, by the Unix second at which it begins."""
    span: int
    """Seconds of a span: 60 or 3600."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "error_class": self.error_class,
            "place": self.place,
            "error": self.error,
            "count": self.count,
            "first": instant_text(self.first * SECOND),
            "last": instant_text(self.last * SECOND),
            "queues": list(self.queues),
            "task_id": self.task_id,
            "queue": self.queue,
            "span_s": self.span,
            "series": [{"at": instant_text(at * SECOND), "count": count} for at, count in self.series],
        }
