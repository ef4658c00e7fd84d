"""A worker's settings: frozen, validated, with the defaults that keep the promises."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from veredus.errors import ConfigError
from veredus.model.priority import parse_queues
from veredus.model.retry import RetryDelay, RetryDelayFunction, as_function, asynq_default

OnError = Callable[[BaseException, Any], Awaitable[None] | None]
"""(the error, the job), before the task's new state is written."""
Companion = Callable[[Any], AbstractAsyncContextManager[Any]]
HealthCheck = Callable[[BaseException | None], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Durations in seconds."""

    queues: Mapping[str, int] | None = None
    """Names with weights; None serves every queue that the app's tasks and topics name."""
    strict: bool = False
    """Always the heaviest queue first, instead of by chance in proportion to the weights."""
    concurrency: int = 100
    """Handlers at once."""
    threads: int = 32
    """Synchronous handlers at once."""
    process_pool: int = 0
    """Handlers with run_in="process" at once; 0 means one per core, divided among the worker processes."""
    processes: int = 1
    """Worker processes under one supervisor."""
    burst: bool = False
    """Stop when the queues are empty."""
    scheduler: bool = True
    """Fire the schedules of the app, if it has any and no other process does; never with `burst`."""
    max_tasks: int = 0
    """A process ends after so many tasks and is replaced; 0 means never."""
    max_memory: int = 0
    """A process ends above so many MB resident and is replaced; 0 means never."""
    shutdown_timeout: float = 25.0
    """How long running handlers may go on after a stop; what is left is given back."""
    lease: float = 12.0
    """How long a task stays ours without a heartbeat; renewed three times as often."""
    sweep: float = 2.0
    """How often the recoverer looks for expired leases; with short leases, six times within one."""
    deadline_grace: float = 3.0
    """How long after its deadline a handler may take to end, before it counts as stuck."""
    retry_while_running: bool = False
    """A handler that is stuck (a thread, or a coroutine that ignores being cancelled) keeps its task until it ends.
    True: its lease runs out instead, and another attempt begins while this one still runs."""
    forward_interval: float = 3.0
    """How often the forwarder looks without being woken: for what Go clients scheduled."""
    janitor_interval: float = 8.0
    health_check: HealthCheck | None = None
    health_check_interval: float = 15.0
    retry_delay: RetryDelayFunction = asynq_default
    is_failure: Callable[[BaseException], bool] | None = None
    """False for an error means: retry, but count neither an attempt nor a failure."""
    max_deferrals: int = 0
    """A task that was retried so often for what is no failure is archived; 0 means never, as in Asynq."""
    max_crashes: int = 3
    """A task that killed the process that ran it so often is archived, however many retries it has left; 0 means never.
    A lease that ran out counts too: nobody can tell whether the worker died or was only cut off."""
    retry_front: bool = False
    """A retry that is due goes to the front of the line, not behind everything that waits."""
    share_with_go: bool = True
    """Leave a part of the tasks for Go servers that serve the same queue; never with `burst`. False: whoever is first
    gets the task, and that is nearly always this worker, which does not poll."""
    on_error: OnError | None = None
    tracebacks: bool = True
    """Keep the traceback of a failed attempt with its task, at most 8 KiB, until an attempt succeeds."""
    companions: tuple[Companion, ...] = ()
    """What runs beside the worker in each of its processes: functions of the worker whose result `async with` opens."""

    @classmethod
    def make(cls, *, queues: Mapping[str, int] | Sequence[str] | str | None = None, **given: Any) -> WorkerConfig:
        """Check everything, name what is wrong."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError("worker setting", name, f"one of {', '.join(known)}", known=known)
        values = {name: value for name, value in given.items() if value is not None}
        for name in ("concurrency", "threads", "processes"):
            if name in values:
                values[name] = _whole(name, values[name], 1)
        for name in ("process_pool", "max_tasks", "max_memory", "max_deferrals", "max_crashes"):
            if name in values:
                values[name] = _whole(name, values[name], 0)
        for name in ("lease", "sweep", "forward_interval", "janitor_interval", "health_check_interval"):
            if name in values:
                values[name] = _seconds(name, values[name], above=0.0)
        for name in ("shutdown_timeout", "deadline_grace"):
            if name in values:
                values[name] = _seconds(name, values[name])
        if "retry_delay" in values:
            delay: RetryDelay = values["retry_delay"]
            values["retry_delay"] = as_function(delay)
        for name in ("health_check", "is_failure", "on_error"):
            if name in values and not callable(values[name]):
                raise ConfigError(name, values[name], "a function")
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
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, value, f"a whole number of at least {least}")
    return value


def _seconds(name: str, value: Any, above: float | None = None) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or seconds < 0 or seconds == above:
        raise ConfigError(name, value, "seconds above 0" if above is not None else "seconds of at least 0")
    return float(seconds)
