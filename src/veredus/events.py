"""Events within a process, and the bus that delivers them to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from veredus.model.message import TaskMessage

logger = logging.getLogger("veredus.events")


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """An attempt begins."""

    message: TaskMessage


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """An attempt ended. `action` is what follows: done, complete, retry, archive, requeue or nothing."""

    message: TaskMessage
    end: str
    action: str
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class TaskOverran:
    """A handler still runs after its deadline and grace. `where` is loop, thread or process. Once per attempt."""

    message: TaskMessage
    where: str


@dataclass(frozen=True, slots=True)
class LeaseWasLost:
    """A settlement or heartbeat found that this worker no longer owns the task."""

    queue: str
    task_id: str


@dataclass(frozen=True, slots=True)
class WorkerMisjudged:
    """This worker looked dead because its connections were closed, and this many of its leases were taken."""

    leases: int


@dataclass(frozen=True, slots=True)
class TaskRecovered:
    """This worker claimed a task of a lost worker. `action` is retry, archive or done."""

    message: TaskMessage
    losses: int
    action: str


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """An entry of a queue was removed because it could not be run, for example dangling, expired or undecodable."""

    queue: str
    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Delayed tasks became pending. `late` is the seconds since the first of them was due; None if its due time was not
    known in advance: after a start, or if a Go client scheduled it."""

    queue: str
    moved: int
    late: float | None = None


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The members of a group were replaced by these tasks."""

    queue: str
    group: str
    members: int
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of a durable task ran. `outcome` is done or failed."""

    queue: str
    type: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskParked:
    """A durable handler leaves its worker. `kind` is what it waits for: sleep, event or children."""

    queue: str
    type: str
    kind: str


@dataclass(frozen=True, slots=True)
class TaskWoken:
    """The handler of a waiting task runs again, `late` seconds after what it waited for had come."""

    queue: str
    type: str
    kind: str
    late: float


@dataclass(frozen=True, slots=True)
class RoleRestarted:
    """A role of the worker ended unexpectedly and is started again."""

    role: str


Event = (
    TaskStarted
    | TaskEnded
    | TaskOverran
    | LeaseWasLost
    | WorkerMisjudged
    | TaskRecovered
    | ItemDropped
    | Forwarded
    | Aggregated
    | StepEnded
    | TaskParked
    | TaskWoken
    | RoleRestarted
)
Listener = Callable[[Event], None]


class Bus:
    """Calls every listener with every event. An exception of a listener is logged and does not affect the worker."""

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
