"""The end of an attempt as a value: which verb settles the task, and everything that the verb needs."""

from __future__ import annotations

from typing import NamedTuple


class Done(NamedTuple):
    """Succeeded; the task is deleted."""

    task_id: str
    owner: str
    unique_key: str = ""


class Complete(NamedTuple):
    """Succeeded; the task and its result are kept for a while."""

    task_id: str
    owner: str
    unique_key: str
    message: bytes
    retention: int
    result: bytes | None
    attempt: bytes = b""
    """The record of the attempt; empty for none. Also below."""


class Retry(NamedTuple):
    """Failed; due again after a delay."""

    task_id: str
    owner: str
    message: bytes
    delay_ms: int
    is_failure: bool
    front: bool = False
    """Put the task at the front of pending when it is due."""
    crashed: bool = False
    """Whether the task killed the process that ran it."""
    traceback: bytes = b""
    attempt: bytes = b""


class Archive(NamedTuple):
    """Failed for good; kept in the archive."""

    task_id: str
    owner: str
    unique_key: str
    message: bytes
    original: bytes = b""
    is_failure: bool = True
    """False for a task that was cancelled."""
    traceback: bytes = b""
    attempt: bytes = b""


class Requeue(NamedTuple):
    """Interrupted; the task goes back to the front of pending."""

    task_id: str
    owner: str
    attempt: bytes = b""


class Park(NamedTuple):
    """Not ended: its handler waits for something and has left its worker. `kind`, `ends` and `field` are those of
    `model.durable.Wait`."""

    task_id: str
    owner: str
    kind: str
    ends: int
    field: str


Settlement = Done | Complete | Retry | Archive | Requeue | Park
