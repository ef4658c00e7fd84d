"""The whole error tree.

    VeredusError
    ├── ConfigError            a setting, option or argument is wrong: names the field, the value and what is allowed
    ├── PayloadError           arguments that cannot be encoded, or bytes that do not fit the handler's signature
    │   └── PayloadTooLarge    the encoded payload exceeds the limit
    ├── StoreError             Redis refused or could not be reached
    │   ├── ConnectionLost     no connection, or it broke before the answer came: the outcome is unknown
    │   ├── AuthError          wrong or missing password, or a permission is missing
    │   ├── NotReady           the server is loading, read-only or failing over: try again soon
    │   ├── NotConfirmed       written, but not known to be as safe as was asked for
    │   └── CommandRefused     Redis answered with an error of its own (wrong type, ...)
    │       └── ServerFull     the server's memory is full: it takes no new tasks until there is room
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
    │   ├── QueueClosed        the queue takes no new tasks until it is opened again
    │   ├── QueueUnserved      nobody alive keeps what an option of the task promises (App(unserved="refuse"))
    │   ├── GroupNotFound      no task waits in a group of that name
    │   ├── LaneNotHeld        no archived task holds up the tasks with this order key
    │   └── ArchiveFull        the archive has no room for so many tasks
    ├── ScheduleNotFound       no schedule has this id
    ├── ServerNotFound         no worker process that lives has this id
    ├── GatewayError
    │   ├── Unauthorized       a client's token was refused
    │   ├── Unreachable        no gateway could be reached
    │   ├── OutboxFull         a client has so much unread that there is no room for more
    │   ├── SessionClosed      the gateway ended the session for good, or this side closed it
    │   └── RequestError
    │       ├── RequestRejected  refused before it was accepted: it did not run
    │       ├── RequestFailed    its response is an error
    │       ├── RequestTimeout   no response in time: it may or may not have run
    │       └── RequestLost      its session is gone: it may or may not have run
    ├── EmbeddedError          the embedded server cannot be found, started or shared
    └── WorkerStopped          the worker is (or has been) stopped

Raised by handlers, to steer what happens next (they are not failures of Veredus):

    SkipRetry    archive now, whatever retries are left
    ResultError  raised for a handler whose return value cannot be stored: archived at once
    RevokeTask   delete the task, counted as processed, not as failed
    Refused      answer a client's request with this error, whatever retries are left
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def near(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is not known: one that begins with it, or else one that looks like it."""
    names = list(known)
    found = [one for one in names if name and one.startswith(name)] or difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


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


class NotConfirmed(StoreError):
    """It is stored on the master, but neither replicas nor the disk confirmed it in time: a failure of the server may
    still lose it. `handles` are those of the tasks. To send it again is safe with a `task_id` (a task) or a dedupe key
    (a message): whatever is there already is not stored twice."""

    def __init__(self, text: str, reply: Any = None, *, handles: Sequence[Any] = ()) -> None:
        self.reply, self.handles = reply, list(handles)
        super().__init__(text)


class CommandRefused(StoreError):
    """Redis answered with an error of its own."""


class ServerFull(CommandRefused):
    """The server's memory is full (`maxmemory`): it takes no new tasks. Workers go on, and make room."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return (
            f"the server's memory is full, it takes no new tasks: raise its maxmemory, delete completed and archived "
            f"tasks, or wait until workers have made room ({self.args[0]})"
        )


class TaskError(VeredusError):
    """Something about one task."""


class TaskNotFound(TaskError):
    """No task with this id is in this queue."""

    def __init__(self, task_id: str, queue: str, *, hint: str = "") -> None:
        self.task_id, self.queue = task_id, queue
        where = f"queue {queue!r}" if queue else "any queue"
        super().__init__(f"no task {task_id!r} in {where}{hint and f' ({hint})'}")


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
    """The task ended without a result; `error` is what its last attempt ended with, `traceback` where."""

    def __init__(self, text: str, *, task_id: str = "", error: str = "", traceback: str = "") -> None:
        self.task_id, self.error, self.traceback = task_id, error, traceback
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


class QueueClosed(QueueError):
    """The queue takes no new tasks until somebody opens it again."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"queue {queue!r} is closed: it takes no new tasks until it is opened (veredus queue open)")


class QueueUnserved(QueueError):
    """No worker is alive that keeps what an option of the task promises; raised with `App(unserved="refuse")`."""

    def __init__(self, queue: str, option: str, reason: str) -> None:
        self.queue, self.option = queue, option
        super().__init__(f"queue {queue!r}: a task with {option} was refused: {reason}")


class GroupNotFound(QueueError):
    """No task waits in a group of that name."""

    def __init__(self, group: str, queue: str, *, known: Iterable[str] = ()) -> None:
        self.group, self.queue = group, queue
        super().__init__(f"no task waits in group {group!r} of queue {queue!r}{near(group, known)}")


class ScheduleNotFound(VeredusError):
    """No schedule has this id, and none that had it has left a history."""

    def __init__(self, entry_id: str, *, known: Iterable[str] = ()) -> None:
        self.entry_id = entry_id
        super().__init__(f"no schedule {entry_id!r}{near(entry_id, known)}")


class ServerNotFound(VeredusError):
    """No worker process that lives has this id."""

    def __init__(self, server: str, *, known: Iterable[str] = ()) -> None:
        self.server = server
        super().__init__(f"no worker process {server!r}{near(server, known)}")


class LaneNotHeld(QueueError):
    """No archived task holds up the tasks with this order key."""

    def __init__(self, order_key: str, queue: str, *, known: Iterable[str] = ()) -> None:
        self.order_key, self.queue = order_key, queue
        near = difflib.get_close_matches(order_key, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"nothing holds up the order key {order_key!r} in queue {queue!r}{hint}")


class ArchiveFull(QueueError):
    """The archive has no room for so many tasks: its oldest would be deleted."""

    def __init__(self, queue: str, tasks: int, excess: int, limit: int) -> None:
        self.queue, self.tasks, self.excess, self.limit = queue, tasks, excess, limit
        super().__init__(
            f"archiving {tasks:,} tasks of queue {queue!r} would delete {excess:,}: the archive keeps {limit:,}; "
            "allow it with drop_excess=True"
        )


class GatewayError(VeredusError):
    """Something about a client's connection, session or request."""


class Unauthorized(GatewayError):
    """A client's token was refused."""


class Unreachable(GatewayError, ConnectionError):
    """No gateway could be reached, or none welcomed us in time."""


class OutboxFull(GatewayError):
    """A client has so much unread that there is no room for another message: `notify(..., full="raise")`."""


class SessionClosed(GatewayError):
    """The gateway ended the session and connecting again would not help; or this side closed it (code 0)."""

    def __init__(self, text: str, *, code: int = 0) -> None:
        self.code = code
        super().__init__(text)


class RequestError(GatewayError):
    """A client's request has no result. `retryable`: the same request may succeed later, `retry_after` seconds from
    now."""

    def __init__(self, action: str, problem: str, *, code: int = 0, retryable: bool = False, retry_after: float = 0.0):
        self.action, self.problem, self.code = action, problem, code
        self.retryable, self.retry_after = retryable, retry_after
        super().__init__(f"{action}: {problem}" + (f" (code {code})" if code else ""))


class RequestRejected(RequestError):
    """Refused before it was accepted: it did not run."""


class RequestFailed(RequestError):
    """Its response is an error."""


class RequestTimeout(RequestError, TimeoutError):
    """No response in time: it may or may not have run."""


class RequestLost(RequestError):
    """Its session is gone: it may or may not have run."""


class EmbeddedError(VeredusError):
    """The embedded server cannot be found, started or shared."""


class WorkerStopped(VeredusError):
    """The worker is, or has been, stopped."""


class SkipRetry(Exception):
    """Raise (or wrap) in a handler: archive the task now, whatever retries are left."""


class ResultError(SkipRetry):
    """What a handler returned cannot be stored. Archived at once: its work is done, and would be done again."""


class RevokeTask(Exception):
    """Raise (or wrap) in a handler: delete the task; counted as processed, not as failed."""


class Refused(SkipRetry):
    """Raise in an action: the client gets this code and text as the answer to its request."""

    def __init__(self, code: int, text: str = "") -> None:
        if not isinstance(code, int) or not 400 <= code <= 999:
            raise ConfigError("code", code, "a whole number from 400 to 999")
        self.code, self.text = code, text
        super().__init__(text or f"refused with code {code}")
