"""The way out of an attempt, as a value: which verb ends it and everything that verb needs."""

from __future__ import annotations

from typing import NamedTuple


class Done(NamedTuple):
    """Succeeded; nothing stays."""

    task_id: str
    owner: str
    unique_key: str = ""


class Complete(NamedTuple):
    """Succeeded; kept with its result for a while."""

    task_id: str
    owner: str
    unique_key: str
    message: bytes
    retention: int
    result: bytes | None


class Retry(NamedTuple):
    """Failed; due again after a delay."""

    task_id: str
    owner: str
    message: bytes
    delay_ms: int
    is_failure: bool
    front: bool = False
    """When it is due, to the front of pending."""
    crashed: bool = False
    """Whether it killed the process that ran it."""
    traceback: bytes = b""


class Archive(NamedTuple):
    """Failed for good; put aside for people to look at."""

    task_id: str
    owner: str
    unique_key: str
    message: bytes
    original: bytes = b""
    is_failure: bool = True
    """False for a task that was cancelled."""
    traceback: bytes = b""


class Requeue(NamedTuple):
    """Not run to its end; given back to the front of pending."""

    task_id: str
    owner: str


Settlement = Done | Complete | Retry | Archive | Requeue
