"""The whole error tree.

    VeredusError
    ├── ConfigError            a setting, option or argument is wrong: names the field, the value and what is allowed
    │   └── UnknownTask        no task of that name is registered
    ├── PayloadError           arguments that cannot be encoded, or bytes that do not fit the handler's signature
    │   └── PayloadTooLarge    the encoded payload exceeds the limit
    ├── StoreError             Redis refused or could not be reached
    │   ├── ConnectionLost     no connection, or it broke before the answer came: the outcome is unknown
    │   ├── AuthError          wrong or missing password, or a permission is missing
    │   ├── NotReady           the server is loading, read-only or failing over: try again soon
    │   └── CommandRefused     Redis answered with an error of its own (wrong type, out of memory, ...)
    ├── TaskError
    │   ├── TaskNotFound       no task with this id is in this queue
    │   ├── WrongState         what was asked is not possible in the state that the task is in
    │   ├── DuplicateTask      a unique lock is held by another task
    │   ├── TaskIdConflict     a task with this id exists in this queue
    │   ├── TaskFailed         the task ended without a result: its last error is inside
    │   │   └── TaskCancelled  because somebody cancelled it
    │   ├── ResultGone         the task ended and what it left behind has expired
    │   ├── TaskTimeout        an attempt ran over its timeout or deadline
    │   └── LeaseLost          the attempt is no longer ours: somebody else owns the task now
    ├── QueueError
    │   ├── QueueNotFound      no queue of that name was ever used
    │   ├── QueueNotEmpty      the queue still has tasks
    │   └── ArchiveFull        the archive has no room for so many tasks
    ├── EmbeddedError          the embedded server cannot be found, started or shared
    └── WorkerStopped          the worker is (or has been) stopped

Raised by handlers, to steer what happens next (they are not failures of Veredus):

    SkipRetry    archive now, whatever retries are left
    RevokeTask   delete the task, counted as processed, not as failed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VeredusError(Exception):
    """The root of everything that Veredus raises."""


class ConfigError(VeredusError, ValueError):
    """A setting is wrong. The text names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str, *, known: Iterable[str] = ()) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        text = f"{field}: got {value!r}, expected {allowed}"
        if known and isinstance(value, str):
            near = difflib.get_close_matches(value, list(known), n=1)
            if near:
                text += f" (did you mean {near[0]!r}?)"
        super().__init__(text)


class UnknownTask(ConfigError):
    """No task of that name is registered in this app."""


class PayloadError(VeredusError, ValueError):
    """Arguments that cannot be encoded, or a payload that does not fit the handler."""


class PayloadTooLarge(PayloadError):
    """The encoded payload exceeds the limit."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"payload: {size:,} bytes, allowed are {limit:,}; store large data elsewhere and send its address, "
            "or raise App(max_payload=...)"
        )


class StoreError(VeredusError):
    """Redis refused or could not be reached."""


class ConnectionLost(StoreError, ConnectionError):
    """No connection, or it broke before the answer came: what was asked may or may not have happened."""


class AuthError(StoreError):
    """Wrong or missing password, or a permission is missing."""


class NotReady(StoreError):
    """The server is loading its data, is a read-only replica or is failing over: try again soon."""


class CommandRefused(StoreError):
    """Redis answered with an error of its own."""


class TaskError(VeredusError):
    """Something about one task."""


class TaskNotFound(TaskError):
    """No task with this id is in this queue."""

    def __init__(self, task_id: str, queue: str, *, hint: str = "") -> None:
        self.task_id, self.queue = task_id, queue
        super().__init__(f"no task {task_id!r} in queue {queue!r}{hint and f' ({hint})'}")


class WrongState(TaskError):
    """What was asked is not possible in the state that the task is in."""

    def __init__(self, task_id: str, queue: str, problem: str) -> None:
        self.task_id, self.queue, self.problem = task_id, queue, problem
        super().__init__(f"task {task_id!r} in queue {queue!r}: {problem}")


class DuplicateTask(TaskError):
    """A unique lock is held by another task."""


class TaskIdConflict(TaskError):
    """A task with this id exists already in this queue."""

    def __init__(self, task_id: str, queue: str) -> None:
        self.task_id, self.queue = task_id, queue
        super().__init__(f"task id {task_id!r} exists already in queue {queue!r}")


class TaskFailed(TaskError):
    """The task ended without a result; `error` is what its last attempt ended with."""

    def __init__(self, text: str, *, task_id: str = "", error: str = "") -> None:
        self.task_id, self.error = task_id, error
        super().__init__(text)


class TaskCancelled(TaskFailed):
    """The task ended without a result, because somebody cancelled it."""


class ResultGone(TaskError):
    """The task ended and what it left behind has expired."""


class TaskTimeout(TaskError, TimeoutError):
    """An attempt ran over its timeout or deadline."""


class LeaseLost(TaskError):
    """The attempt is no longer ours."""


class QueueError(VeredusError):
    """Something about one queue."""


class QueueNotFound(QueueError):
    """No queue of that name was ever used."""

    def __init__(self, queue: str, *, known: Iterable[str] = ()) -> None:
        self.queue = queue
        near = difflib.get_close_matches(queue, list(known), n=1)
        super().__init__(f"no queue {queue!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))


class QueueNotEmpty(QueueError):
    """The queue still has tasks."""

    def __init__(self, queue: str, problem: str) -> None:
        self.queue, self.problem = queue, problem
        super().__init__(f"queue {queue!r} {problem}")


class ArchiveFull(QueueError):
    """The archive has no room for so many tasks: its oldest would be deleted."""

    def __init__(self, queue: str, tasks: int, excess: int, limit: int) -> None:
        self.queue, self.tasks, self.excess, self.limit = queue, tasks, excess, limit
        super().__init__(
            f"archiving {tasks:,} tasks of queue {queue!r} would delete {excess:,}: the archive keeps {limit:,}; "
            "allow it with drop_excess=True"
        )


class EmbeddedError(VeredusError):
    """The embedded server cannot be found, started or shared."""


class WorkerStopped(VeredusError):
    """The worker is, or has been, stopped."""


class SkipRetry(Exception):
    """Raise (or wrap) in a handler: archive the task now, whatever retries are left."""


class RevokeTask(Exception):
    """Raise (or wrap) in a handler: delete the task; counted as processed, not as failed."""
