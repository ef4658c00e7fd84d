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
    │   ├── DuplicateTask      a unique lock is held by another task
    │   ├── TaskIdConflict     a task with this id exists in this queue
    │   ├── TaskFailed         the task ended without a result: its last error is inside
    │   ├── ResultGone         the task ended and what it left behind has expired
    │   ├── TaskTimeout        an attempt ran over its timeout or deadline
    │   └── LeaseLost          the attempt is no longer ours: somebody else owns the task now
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


class DuplicateTask(TaskError):
    """A unique lock is held by another task."""


class TaskIdConflict(TaskError):
    """A task with this id exists already in this queue."""

    def __init__(self, task_id: str, queue: str) -> None:
        self.task_id, self.queue = task_id, queue
        super().__init__(f"task id {task_id!r} exists already in queue {queue!r}")


class TaskFailed(TaskError):
    """The task ended without a result."""


class ResultGone(TaskError):
    """The task ended and what it left behind has expired."""


class TaskTimeout(TaskError, TimeoutError):
    """An attempt ran over its timeout or deadline."""


class LeaseLost(TaskError):
    """The attempt is no longer ours."""


class EmbeddedError(VeredusError):
    """The embedded server cannot be found, started or shared."""


class WorkerStopped(VeredusError):
    """The worker is, or has been, stopped."""


class SkipRetry(Exception):
    """Raise (or wrap) in a handler: archive the task now, whatever retries are left."""


class RevokeTask(Exception):
    """Raise (or wrap) in a handler: delete the task; counted as processed, not as failed."""
