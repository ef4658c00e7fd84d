"""WorkerConfig: the validated settings of a worker."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from veredus.errors import ConfigError
from veredus.model.checks import function, seconds, whole
from veredus.model.priority import parse_queues
from veredus.model.retry import RetryDelay, RetryDelayFunction, as_function, asynq_default

OnError = Callable[[BaseException, Any], Awaitable[None] | None]
"""Called with the error and the job, before the task's new state is written."""
Companion = Callable[[Any], AbstractAsyncContextManager[Any]]
HealthCheck = Callable[[BaseException | None], Awaitable[None] | None]


class WorkerSettings(TypedDict, total=False):
    """What `app.worker(...)` accepts beside the queues; None stands for the default. `WorkerConfig` explains each."""

    strict: bool | None
    concurrency: int | None
    threads: int | None
    process_pool: int | None
    processes: int | None
    burst: bool | None
    scheduler: bool | None
    max_tasks: int | None
    max_memory: int | None
    shutdown_timeout: float | None
    lease: float | None
    sweep: float | None
    deadline_grace: float | None
    retry_while_running: bool | None
    forward_interval: float | None
    janitor_interval: float | None
    health_check: HealthCheck | None
    health_check_interval: float | None
    retry_delay: RetryDelay | None
    is_failure: Callable[[BaseException], bool] | None
    max_deferrals: int | None
    max_crashes: int | None
    max_run_age: float | None
    retry_front: bool | None
    share_with_go: bool | None
    on_error: OnError | None
    tracebacks: bool | None
    companions: Sequence[Companion] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Durations in seconds."""

    queues: Mapping[str, int] | None = None
    """Names with weights; None serves every queue that the app's tasks and topics name."""
    strict: bool = False
    """Always the queue with the highest weight first, instead of at random in proportion to the weights."""
    concurrency: int = 100
    """Handlers that run at once."""
    threads: int = 32
    """Synchronous handlers that run at once."""
    process_pool: int = 0
    """Handlers with run_in="process" that run at once; 0 means one per core, divided among the worker processes."""
    processes: int = 1
    """Worker processes under one supervisor."""
    burst: bool = False
    """Stop when the queues are empty."""
    scheduler: bool = True
    """Fire the schedules of the app, if it has any and no other process does; never with `burst`."""
    max_tasks: int = 0
    """Replace a process after this many tasks; 0 means never."""
    max_memory: int = 0
    """Replace a process that uses more than this many MB of resident memory; 0 means never."""
    shutdown_timeout: float = 25.0
    """How long running handlers may go on after a stop. Then their tasks are given back."""
    lease: float = 12.0
    """How long a worker owns a task without a heartbeat. Renewed every third of this time."""
    sweep: float = 2.0
    """How often the recoverer looks for expired leases; at least six times per lease."""
    deadline_grace: float = 3.0
    """How long a handler may take to end after its deadline, before it counts as stuck."""
    retry_while_running: bool = False
    """A stuck handler (a thread, or a coroutine that ignores its cancellation) keeps its task until it ends. True: its
    lease expires instead, and another attempt begins while this one still runs."""
    forward_interval: float = 3.0
    """How often the forwarder runs without a wake-up, for tasks that Go clients scheduled."""
    janitor_interval: float = 8.0
    health_check: HealthCheck | None = None
    health_check_interval: float = 15.0
    retry_delay: RetryDelayFunction = asynq_default
    is_failure: Callable[[BaseException], bool] | None = None
    """False for an error means: retry without counting an attempt or a failure."""
    max_deferrals: int = 0
    """Archive a task after this many retries that were not failures; 0 means never, as in Asynq."""
    max_crashes: int = 3
    """Archive a task after it has killed this many processes, even if it has retries left; 0 means never. An expired
    lease counts too, because a worker that died looks like one that lost its connection."""
    max_run_age: float = 0.0
    """Archive a durable task that began longer ago than this, also while it waits; 0 means never."""
    retry_front: bool = False
    """Put due retries at the front of the queue instead of the end."""
    share_with_go: bool = True
    """Leave a part of the tasks for Go servers that serve the same queue; never with `burst`. False: the first to
    dequeue gets the task. That is nearly always this worker, because Go servers poll."""
    on_error: OnError | None = None
    tracebacks: bool = True
    """Store the traceback of a failed attempt with its task, at most 8 KiB, until an attempt succeeds."""
    companions: tuple[Companion, ...] = ()
    """Run beside the worker in each of its processes: functions that take the worker and return an async context
    manager."""

    @classmethod
    def make(cls, *, queues: Mapping[str, int] | Sequence[str] | str | None = None, **given: Any) -> WorkerConfig:
        """Raises ConfigError for an invalid setting."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError("worker setting", name, f"one of {', '.join(known)}", known=known)
        values = {name: value for name, value in given.items() if value is not None}
        for name in ("concurrency", "threads", "processes"):
            if name in values:
                values[name] = whole(name, values[name], 1)
        for name in ("process_pool", "max_tasks", "max_memory", "max_deferrals", "max_crashes"):
            if name in values:
                values[name] = whole(name, values[name], 0)
        for name in ("lease", "sweep", "forward_interval", "janitor_interval", "health_check_interval"):
            if name in values:
                values[name] = seconds(name, values[name])
        for name in ("shutdown_timeout", "deadline_grace", "max_run_age"):
            if name in values:
                values[name] = seconds(name, values[name], least=0)
        if "retry_delay" in values:
            delay: RetryDelay = values["retry_delay"]
            values["retry_delay"] = as_function(delay)
        for name in ("health_check", "is_failure", "on_error"):
            if name in values:
                function(name, values[name])
        if "companions" in values:
            values["companions"] = tuple(values["companions"])
            if not all(map(callable, values["companions"])):
                raise ConfigError("companions", values["companions"], "functions of the worker")
        if not values.get("process_pool"):
            values["process_pool"] = max(1, cores() // values.get("processes", 1))
        return cls(queues=None if queues is None else parse_queues(queues), **values)

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats."""
        return self.lease / 3

    @property
    def lease_ms(self) -> int:
        return round(self.lease * 1000)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
