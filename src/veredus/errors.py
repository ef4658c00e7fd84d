"""The whole error tree.

    VeredusError
    ├── ConfigError            a setting, option or argument is wrong: names the field, the value and what is allowed
    ├── PayloadError           arguments that cannot be encoded, or bytes that do not fit the handler's signature
    │   └── PayloadTooLarge    the encoded payload exceeds the limit
    ├── StoreError             Redis refused or could not be reached
    │   ├── ConnectionLost     no connection, or it broke before the reply came: the outcome is unknown
    │   ├── AuthError          wrong or missing password, or a permission is missing
    │   ├── NotReady           the server is loading, read-only or failing over: try again soon
    │   ├── NotConfirmed       written, but not confirmed by replicas or the disk as requested
    │   └── CommandRefused     Redis answered with an error of its own (wrong type, ...)
    │       └── ServerFull     the server's memory is full: it accepts no new tasks
    ├── TaskError
    │   ├── TaskNotFound       no task with this id is in this queue
    │   ├── WrongState         the task's state does not allow this operation
    │   ├── DuplicateTask      a unique lock is held by another task
    │   ├── TaskIdConflict     a task with this id exists in this queue
    │   ├── TaskFailed         the task ended without a result; contains its last error
    │   │   ├── TaskCancelled  because it was cancelled
    │   │   └── ChildFailed    the same of a child, for its parent
    │   │       └── ChildUnknown  a child is gone: it may or may not have run
    │   ├── ResultGone         the task ended, and its result has expired
    │   ├── TaskTimeout        an attempt ran over its timeout or deadline
    │   ├── LeaseLost          another worker owns the task now
    │   ├── StepFailed         a step of a durable task failed; the same at each replay
    │   ├── StepChanged        a fan-out has other children than at the last attempt
    │   ├── WouldWaitForItself  a child could only begin when its parent has ended
    │   └── ConcurrentDurableCall  two durable calls of one handler at once that look the same later
    │       └── ConcurrentWait     a wait while another durable call is open
    ├── QueueError
    │   ├── QueueNotFound      no queue with this name was ever used
    │   ├── QueueNotEmpty      the queue still has tasks
    │   ├── QueueFull          the queue has as many waiting tasks as it may have (app.max_length)
    │   ├── QueueClosed        the queue accepts no new tasks until it is opened again
    │   ├── QueueUnserved      no live worker supports an option of the task (App(unserved="refuse"))
    │   ├── GroupNotFound      no task waits in a group with this name
    │   ├── OrderKeyNotHeld    no archived task holds up the tasks with this order key
    │   └── ArchiveFull        the archive has too little room for the tasks
    ├── ScheduleNotFound       no schedule has this id
    ├── ServerNotFound         no live worker process has this id
    ├── GatewayError
    │   ├── Unauthorized       a client's token was refused
    │   ├── Unreachable        no gateway could be reached
    │   ├── OutboxFull         a client has too many unread messages
    │   ├── SessionClosed      the gateway ended the session for good, or this side closed it
    │   └── RequestError
    │       ├── RequestRejected  refused before it was accepted: it did not run
    │       ├── RequestFailed    its response is an error
    │       ├── RequestTimeout   no response in time: it may or may not have run
    │       └── RequestLost      its session is gone: it may or may not have run
    ├── EmbeddedError          the embedded server cannot be found, started or shared
    └── WorkerStopped          the worker is (or has been) stopped

Raised by handlers, to control what happens next (they are not errors of Veredus):

    SkipRetry    archive now, whatever retries are left
    Retry        run the task again, after a time of its own, counted as a retry or not
    ResultError  the handler's return value cannot be stored: archive at once
    StepResultError  the same for a step, and for too many of them; the task can be run again from there
    RunTooOld    a durable task began longer ago than the worker's max_run_age: archive at once
    RevokeTask   delete the task, counted as processed, not as failed
    Refused      answer a client's request with this error, whatever retries are left
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any


def near(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: a known one that starts with it, or else a similar one."""
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
    """Redis refused a call or could not be reached."""


class ConnectionLost(StoreError, ConnectionError):
    """No connection, or it broke before the reply came: the outcome is unknown."""


class AuthError(StoreError):
    """Wrong or missing password, or a permission is missing."""


class NotReady(StoreError):
    """The server is loading its data, is a read-only replica or is failing over: try again soon."""


class NotConfirmed(StoreError):
    """The task or message is stored on the master, but neither replicas nor the disk confirmed it in time: a failure
    of the server may still lose it. `handles` are those of the tasks. Sending again is safe with a `task_id` (a
    task) or a dedupe key (a message): nothing is stored twice."""

    def __init__(self, text: str, reply: Any = None, *, handles: Sequence[Any] = ()) -> None:
        self.reply, self.handles = reply, list(handles)
        super().__init__(text)


class CommandRefused(StoreError):
    """Redis answered with an error of its own."""


class ServerFull(CommandRefused):
    """The server's memory is full (`maxmemory`): it accepts no new tasks. Workers continue, and free memory."""

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
    """The task's state does not allow this operation."""

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
    """The task ended without a result. `error` is the last attempt's error, `traceback` is where it was raised."""

    def __init__(self, text: str, *, task_id: str = "", error: str = "", traceback: str = "") -> None:
        self.task_id, self.error, self.traceback = task_id, error, traceback
        super().__init__(text)


class ChildFailed(TaskFailed):
    """A child of a durable task ended without a result. If the parent does not catch it, the parent is archived at
    once: run again, it takes what the child has become since, and runs it again if it is still archived."""


class ChildUnknown(ChildFailed):
    """A child was enqueued and is gone: it may or may not have run."""


class StepChanged(TaskError):
    """A fan-out has other children than at the last attempt. Take the items from a step."""


class WouldWaitForItself(TaskError):
    """A child has an order key for which its parent, or what waits for that, is holding up others."""


class TaskCancelled(TaskFailed):
    """The task ended without a result because it was cancelled."""


class ResultGone(TaskError):
    """The task ended, and its result has expired."""


class TaskTimeout(TaskError, TimeoutError):
    """An attempt ran over its timeout or deadline."""


class LeaseLost(TaskError):
    """Another worker owns the task now."""


class StepFailed(TaskError):
    """A step failed: `kind` is the class of its error, `text` what that said. A handler that catches it and goes on
    gets the same one at each replay; one that does not catch it runs the step again at its next attempt."""

    def __init__(self, step: str, kind: str, text: str) -> None:
        self.step, self.kind, self.text = step, kind, text
        super().__init__(f"step {step!r} failed: {kind}: {text}" if text else f"step {step!r} failed: {kind}")


class ConcurrentDurableCall(TaskError):
    """Two durable calls of one handler at once that would look the same at a replay."""


class ConcurrentWait(ConcurrentDurableCall):
    """A wait while another durable call of the handler is open. To wait for many things, use `gather`."""


class QueueError(VeredusError):
    """Something about one queue."""


class QueueNotFound(QueueError):
    """No queue with this name was ever used."""

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
    """The queue accepts no new tasks until it is opened again."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"queue {queue!r} is closed: it takes no new tasks until it is opened (veredus queue open)")


class QueueFull(QueueError):
    """The queue has as many waiting tasks as it may have: see `app.max_length`. `handles` are those of a whole batch: a
    handle that was not `created` has no task."""

    def __init__(self, queue: str, most: int, *, handles: Sequence[Any] = ()) -> None:
        self.queue, self.most, self.handles = queue, most, list(handles)
        text = f"queue {queue!r} is full: {most:,} tasks may wait in it; try again later, or wait with wait_for_room="
        if handles:
            left = sum(not handle.created for handle in handles)
            text += f" ({left:,} of {len(handles):,} tasks were not stored)"
        super().__init__(text)


class QueueUnserved(QueueError):
    """No live worker supports an option of the task; raised with `App(unserved="refuse")`."""

    def __init__(self, queue: str, option: str, reason: str) -> None:
        self.queue, self.option = queue, option
        super().__init__(f"queue {queue!r}: a task with {option} was refused: {reason}")


class GroupNotFound(QueueError):
    """No task waits in a group with this name."""

    def __init__(self, group: str, queue: str, *, known: Iterable[str] = ()) -> None:
        self.group, self.queue = group, queue
        super().__init__(f"no task waits in group {group!r} of queue {queue!r}{near(group, known)}")


class ScheduleNotFound(VeredusError):
    """No schedule has this id, and no history of one exists."""

    def __init__(self, entry_id: str, *, known: Iterable[str] = ()) -> None:
        self.entry_id = entry_id
        super().__init__(f"no schedule {entry_id!r}{near(entry_id, known)}")


class ServerNotFound(VeredusError):
    """No live worker process has this id."""

    def __init__(self, server: str, *, known: Iterable[str] = ()) -> None:
        self.server = server
        super().__init__(f"no worker process {server!r}{near(server, known)}")


class WorkerSilent(VeredusError):
    """A worker process has not done what it was asked to do."""

    def __init__(self, worker: str, verb: str, seconds: float) -> None:
        self.worker = worker
        super().__init__(
            f"worker {worker!r} has not reacted to {verb} within {seconds:g} s: it is frozen, or cut off from Redis. It"
            " reads the request when it runs again, unless it is taken for dead before"
        )


class OrderKeyNotHeld(QueueError):
    """No archived task holds up the tasks with this order key."""

    def __init__(self, order_key: str, queue: str, *, known: Iterable[str] = ()) -> None:
        self.order_key, self.queue = order_key, queue
        near = difflib.get_close_matches(order_key, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"nothing holds up the order key {order_key!r} in queue {queue!r}{hint}")


class ArchiveFull(QueueError):
    """The archive has no room for these tasks: its oldest would be deleted."""

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
    """No gateway could be reached, or none answered in time."""


class OutboxFull(GatewayError):
    """The client has too many unread messages for another one: `notify(..., full="raise")`."""


class SessionClosed(GatewayError):
    """The gateway ended the session and reconnecting would not help; or this side closed it (code 0)."""

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
    """No response in time: the request may or may not have run."""


class RequestLost(RequestError):
    """The session is gone: the request may or may not have run."""


class EmbeddedError(VeredusError):
    """The embedded server cannot be found, started or shared."""


class WorkerStopped(VeredusError):
    """The worker is, or has been, stopped."""


class SkipRetry(Exception):
    """Raise (or wrap) in a handler to archive the task now, whatever retries are left."""


class Retry(Exception):
    """Raise in a handler to run the task again after `after` seconds, or after its usual delay. With
    `counts=False` this attempt counts neither as one of `max_retry` nor as a failure."""

    def __init__(self, text: str = "", *, after: float | timedelta | None = None, counts: bool = True) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < math.inf
        if seconds is not None and not is_number:
            raise ConfigError("after", after, "seconds of at least 0, or a timedelta")
        self.after, self.counts = None if seconds is None else float(seconds), bool(counts)
        super().__init__(text)


class ResultError(SkipRetry):
    """The handler's return value cannot be stored. The task is archived at once, because a retry would repeat its
    work."""


class StepResultError(ResultError):
    """What a step returned cannot be kept, or no longer fits its annotation, or there are too many steps. The task is
    archived at once; run again, it continues after the last step that was kept."""


class DamagedRun(TaskError, SkipRetry):
    """What a durable task has kept cannot be read: another program wrote it. The task is archived; run it from its
    start, or delete it."""


class RunTooOld(SkipRetry):
    """A durable task began longer ago than the setting `max_run_age` allows. It is archived; run it from its start, or
    raise the setting and run it again."""


class RevokeTask(Exception):
    """Raise (or wrap) in a handler to delete the task; it counts as processed, not as failed."""


class Refused(SkipRetry):
    """Raise in an action: the client gets this code and text as the response to its request."""

    def __init__(self, code: int, text: str = "") -> None:
        if not isinstance(code, int) or not 400 <= code <= 999:
            raise ConfigError("code", code, "a whole number from 400 to 999")
        self.code, self.text = code, text
        super().__init__(text or f"refused with code {code}")
