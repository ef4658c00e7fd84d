"""Facts announced in-process, and the bus that carries them to whoever listens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from veredus.model.message import TaskMessage

logger = logging.getLogger("veredus.events")


@dataclass(frozen=True, slots=True)
class TaskStarted:
    message: TaskMessage


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """An attempt ended; `action` is what follows: done, complete, retry, archive, requeue or nothing."""

    message: TaskMessage
    end: str
    action: str
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class TaskOverran:
    """A handler runs on after its deadline and its grace; `where` is loop, thread or process. Told once per attempt."""

    message: TaskMessage
    where: str


@dataclass(frozen=True, slots=True)
class LeaseWasLost:
    """A settlement or a heartbeat found that somebody else has the task now."""

    queue: str
    task_id: str


@dataclass(frozen=True, slots=True)
class TaskRecovered:
    """A task of a worker that has gone was claimed here; `action` is retry or archive."""

    message: TaskMessage
    losses: int
    action: str


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """Something in a queue that could not be run: dangling, wrongtype, duplicate, expired, undecodable."""

    queue: str
    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forwarded:
    """So many delayed tasks became pending; `late` is how many seconds after the first of them was due, None if that
    was not known beforehand: at a start, or of what a Go client scheduled."""

    queue: str
    moved: int
    late: float | None = None


@dataclass(frozen=True, slots=True)
class Aggregated:
    """So many members of a group were replaced by these tasks."""

    queue: str
    group: str
    members: int
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleRestarted:
    """A part of the worker that runs as long as its process has ended, for whatever reason, and is started again."""

    role: str


Event = (
    TaskStarted
    | TaskEnded
    | TaskOverran
    | LeaseWasLost
    | TaskRecovered
    | ItemDropped
    | Forwarded
    | Aggregated
    | RoleRestarted
)
Listener = Callable[[Event], None]


class Bus:
    """Calls every listener with every event; one that raises is logged and never disturbs the worker."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def emit(self, event: Event) -> None:
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("an event listener failed", extra={"event": type(event).__name__})
