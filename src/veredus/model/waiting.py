"""Why a task waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veredus.model.info import instant_text


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInfo:
    """One reason why a task does not run now. Instants are Unix milliseconds, 0 if unknown."""

    reason: str
    """`sleep`, `event` or `children` (a durable task), `order key`, `limit`, `due`, `paused`, `no worker` (none serves
    the queue) or `unknown type` (no worker of the queue has a handler for it)."""
    name: str = ""
    """The order key, the limit, or what a durable task waits for."""
    held_by: str = ""
    """The task that holds the order key."""
    holder_state: str = ""
    """Its state: an archived one holds the key until it is released."""
    since_ms: int = 0
    """Since when the task waits for this, or since when the queue is paused."""
    until_ms: int = 0
    """When it is due, or when the limit is checked again at the latest."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "name": self.name,
            "held_by": self.held_by,
            "holder_state": self.holder_state,
            "since": instant_text(self.since_ms * 1_000_000),
            "until": instant_text(self.until_ms * 1_000_000),
        }

    def __str__(self) -> str:
        text = _SENTENCES.get(self.reason, f"{self.reason} {{}}").format(self.name).rstrip()
        if self.held_by:
            text += f", held by task {self.held_by} ({self.holder_state or 'gone'})"
        if self.since_ms:
            text += f", since {instant_text(self.since_ms // 1000 * 1_000_000_000)}"
        ends = "until" if self.reason != "limit" else "looked at again by"
        return text + (f", {ends} {instant_text(self.until_ms * 1_000_000)}" if self.until_ms else "")


_SENTENCES = {
    "limit": "limit {} is used up",
    "due": "it is not due",
    "paused": "the queue is paused",
    "no worker": "no live worker serves queue {}",
    "unknown type": "no live worker of the queue has a handler for type {}",
}
"""The reasons that their names alone do not explain."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Durable tasks that wait for the same thing, or for events whose names differ only behind the last colon."""

    queue: str
    reason: str
    """`sleep cool-down`, `event approved:*`, `children pages`."""
    count: int
    since_ms: int
    """Since when the oldest of them has waited, in Unix ms."""
    task_id: str
    """The oldest of them."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "reason": self.reason,
            "count": self.count,
            "since": instant_text(self.since_ms * 1_000_000),
            "task_id": self.task_id,
        }


def common_reason(waiting_for: str) -> str:
    """What many tasks have in common: `event approved:*` for `event approved:7 until ...`."""
    name = waiting_for.partition(" until ")[0].partition(", ")[0]
    head, colon, _ = name.rpartition(":")
    return f"{head}:*" if colon else name
