"""API addresses that read. The live stream uses the same functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.dashboard.task_views import row_of, states_of, task_of
from veredus.errors import ConfigError
from veredus.inspector.search import Query
from veredus.model.cron import parse
from veredus.model.cron_words import in_words
from veredus.model.info import SECOND, QueueInfo, SchedulerEntryInfo, instant_text
from veredus.model.lifecycle import State
from veredus.wire import lease_owner

STATES = tuple(str(state) for state in State)
FILTERS = ("type", "payload", "error", "error_group", "waiting")
SCAN = 3_000
"""Tasks read by one step of a search; it takes tens of milliseconds."""

MANY_QUEUES = 100
"""With more queues the throughput of each is left out, to keep updates small."""

UPCOMING = 5
"""Ticks of a schedule that are listed."""

Read = Callable[[Opened, Form], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One address: `GET api/<name>`."""

    read: Read
    parameters: tuple[str, ...]
    pace: float
    """Refresh intervals between two reads of the live stream."""


async def overview(opened: Opened, form: Form) -> Any:
    inspector = opened.inspector
    queues, servers = await asyncio.gather(inspector.stats(), inspector.servers())
    closed = await asyncio.gather(*[inspector.is_closed(queue.queue) for queue in queues])
    opened.recent.note(queues)
    names = (*STATES, "size", "processed", "failed", "processed_total", "failed_total")
    return {
        "aggregate": {name: sum(getattr(queue, name) for queue in queues) for name in names},
        "queues": [_queue(opened, queue, shut) for queue, shut in zip(queues, closed, strict=True)],
        "servers": {
            "processes": len(servers),
            "busy": sum(len(server.active_workers) for server in servers),
            "concurrency": sum(server.concurrency for server in servers),
        },
        "rate": opened.recent.rate(*[queue.queue for queue in queues]),
    }


async def queue(opened: Opened, form: Form) -> Any:
    name = form.text("queue")
    info = await opened.inspector.queue(name, memory=True)
    opened.recent.note([info])
    return _queue(opened, info, await opened.inspector.is_closed(name))


def _queue(opened: Opened, info: QueueInfo, closed: bool) -> dict[str, Any]:
    return info.as_dict() | {"closed": closed, "rate": opened.recent.rate(info.queue)}


async def throughput(opened: Opened, form: Form) -> Any:
    """Attempts per minute (beyond 12 hours: per hour) as workers recorded them: of all queues or one, and of each."""
    minutes, queue = _minutes(form), form.text("queue", "") or None
    found = await opened.inspector.throughput(minutes * 60, queue=queue)
    spans = zip(*[one.series for one in found], strict=True)
    sums = [(span[0][0], sum(one[1] for one in span), sum(one[2] for one in span)) for span in spans]
    shown = found if len(found) <= MANY_QUEUES else []
    return {
        "minutes": minutes,
        "window": await _window(opened, minutes * 60),
        "total": [{"at": instant_text(at * SECOND), "processed": ended, "failed": bad} for at, ended, bad in sums],
        "queues": {one.queue: [ended for _, ended, _ in one.series] for one in shown},
    }


def _minutes(form: Form) -> int:
    return form.number("minutes", 60, 1, 30 * 24 * 60)


async def _window(opened: Opened, seconds: int) -> dict[str, Any]:
    """What series that leave out empty spans have to be filled up to."""
    window = await opened.inspector.window(seconds)
    start, end = instant_text(window.start * SECOND), instant_text(window.end * SECOND)
    return {"start": start, "end": end, "span_s": window.span}


async def history(opened: Opened, form: Form) -> Any:
    """Days in UTC, the oldest first. Without a queue, the sum of all queues."""
    days = form.number("days", 30, 1, 365)
    names = [form.text("queue")] if form.has("queue") else await opened.inspector.queues()
    found = await asyncio.gather(*[opened.inspector.history(name, days) for name in names])
    rows = [
        {"date": day[0].date, "processed": sum(d.processed for d in day), "failed": sum(d.failed for d in day)}
        for day in zip(*found, strict=True)
    ]
    return {"queue": form.text("queue", ""), "days": rows[::-1]}


async def tasks(opened: Opened, form: Form) -> Any:
    """One page of tasks, or with a filter, one step of a search."""
    name, state = form.text("queue"), form.text("state")
    group = form.text("group", "") or None
    size = form.number("size", 50, 1, 200)
    where = Query(**{name: form.text(name, "") for name in FILTERS})
    if where.payload and opened.hides:
        raise ConfigError("payload", "(hidden)", "no payload filter: viewers may not search in payloads")
    if where != Query():
        cursor = form.text("cursor", "")
        step = await opened.inspector.search_page(name, state, where, group=group, cursor=cursor, size=size, scan=SCAN)
        rows = [row_of(task) for task in step.tasks]
        return {"tasks": rows, "cursor": step.cursor, "scanned": step.scanned, "size": size}
    page = form.number("page", 1, 1, 10**9)
    newest = form.flag("newest")
    found = await opened.inspector.tasks(name, state, group=group, page=page, size=size, newest=newest)
    info = await opened.inspector.queue(name)
    total = getattr(info, state)
    if group is not None:
        total = await opened.tasks.count(name, state, group=group)
    rows = [row_of(task) for task in found]
    return {"tasks": rows, "page": page, "size": size, "total": total, "counts": states_of(info)}


async def task(opened: Opened, form: Form) -> Any:
    name, task_id = form.text("queue"), form.text("id")
    info, attempts, waits, run, more = await asyncio.gather(
        opened.inspector.task(name, task_id),
        opened.inspector.attempts(name, task_id),
        opened.inspector.waits(name, task_id),
        opened.inspector.durable_run(name, task_id),
        opened.details.of(name, task_id),
    )
    shown = {
        "running": await _running(opened, name, task_id) if info.state == State.ACTIVE else None,
        "attempts": [one.as_dict() for one in attempts],
        "waits": [one.as_dict() for one in waits],
        "run": None if run is None else run.as_dict(),
    }
    if opened.hides:
        shown["unique_key"] = ""  # it is made of the payload, or of parts of it
    return task_of(info, more | shown)


async def _running(opened: Opened, queue: str, task_id: str) -> dict[str, Any] | None:
    """Who runs a task, and since when, as its worker said with its last heartbeat."""
    for server in await opened.inspector.servers():
        for worker in server.active_workers:
            if (worker.queue, worker.task_id) == (queue, task_id):
                name = f"{server.host}:{server.pid}:{lease_owner.worker_part(server.id)}"
                return {"worker": name, "started": instant_text(worker.started_ns)}
    return None


async def children(opened: Opened, form: Form) -> Any:
    """One page of the children of a durable task's fan-out."""
    page, size = form.number("page", 1, 1, 10**6), form.number("size", 100, 1, 1_000)
    found = await opened.inspector.children(
        form.text("queue"), form.text("id"), form.text("gather"), page=page, size=size
    )
    return {"page": page, "size": size, "children": [child.as_dict() for child in found]}


async def waiting(opened: Opened, form: Form) -> Any:
    """What durable tasks wait for, over all queues or in one."""
    queue = form.text("queue", "")
    names = [queue] if queue else await opened.inspector.queues()
    found = await asyncio.gather(*[opened.inspector.waiting(name, scan=SCAN) for name in names])
    return {"waiting": [group.as_dict() for groups in found for group in groups]}


async def types(opened: Opened, form: Form) -> Any:
    """What ran of each task type in the last `minutes`. Only a `type` gets percentiles for each minute or hour."""
    minutes, name = _minutes(form), form.text("type", "")
    queue = form.text("queue", "") or None
    found = await opened.inspector.type_stats(minutes * 60, queue=queue, type=name)
    rows = [one.as_dict() if name else one.summary() for one in found]
    return {"minutes": minutes, "window": await _window(opened, minutes * 60), "types": rows}


async def errors(opened: Opened, form: Form) -> Any:
    """Groups of errors of the last `hours`, over all queues or in one."""
    hours, limit = form.number("hours", 24, 1, 30 * 24), form.number("limit", 100, 1, 1_000)
    queue = form.text("queue", "") or None
    found = await opened.inspector.errors(hours * 3600, queue=queue, type=form.text("type", ""))
    shown = [one.as_dict() for one in found[:limit]]
    return {"hours": hours, "window": await _window(opened, hours * 3600), "total": len(found), "errors": shown}


async def find(opened: Opened, form: Form) -> Any:
    """Every queue that has a task with this id."""
    task_id = form.text("id")
    return {"id": task_id, "queues": await opened.inspector.queues_of(task_id)}


async def servers(opened: Opened, form: Form) -> Any:
    return {"servers": [server.as_dict() for server in await opened.inspector.servers()]}


async def leases(opened: Opened, form: Form) -> Any:
    name = form.text("queue", "") or None
    limit = form.number("limit", 200, 1, 1_000)
    return {"leases": [lease.as_dict() for lease in await opened.inspector.leases(name, limit=limit)]}


async def schedules(opened: Opened, form: Form) -> Any:
    return {"schedules": [_schedule(entry) for entry in await opened.inspector.scheduler_entries()]}


def _schedule(entry: SchedulerEntryInfo) -> dict[str, Any]:
    more = {"words": in_words(entry.spec), "queue": entry.queue, "paused": entry.paused}
    return entry.as_dict() | more | {"upcoming": [instant_text(at * SECOND) for at in _ticks(entry)]}


def _ticks(entry: SchedulerEntryInfo) -> list[int]:
    """When it fires next, in Unix seconds."""
    ticks = [entry.next_ns // SECOND]
    try:
        schedule = parse(entry.spec)
    except ConfigError:  # of another program, which understands more
        return ticks
    while len(ticks) < UPCOMING and (tick := schedule.next_unix(ticks[-1])) is not None:
        ticks.append(tick)
    return ticks


async def schedule(opened: Opened, form: Form) -> Any:
    """When one schedule fired, the newest first."""
    page, size = form.number("page", 1, 1, 10**6), form.number("size", 20, 1, 200)
    events = await opened.inspector.scheduler_events(form.text("id"), page=page, size=size)
    return {"id": form.text("id"), "page": page, "size": size, "events": [event.as_dict() for event in events]}


async def groups(opened: Opened, form: Form) -> Any:
    limit = form.number("limit", 200, 1, 1_000)
    found = await opened.inspector.groups(form.text("queue"))
    largest = sorted(found, key=lambda one: (-one.size, one.group))[:limit]
    return {"total": len(found), "groups": [group.as_dict() for group in largest]}


async def order_keys(opened: Opened, form: Form) -> Any:
    limit = form.number("limit", 200, 1, 1_000)
    found = await opened.inspector.order_keys(form.text("queue"), held=form.flag("held"), limit=limit)
    return {"order_keys": [one.as_dict() for one in found]}


async def limits(opened: Opened, form: Form) -> Any:
    return {"limits": [limit.as_dict() for limit in await opened.inspector.limits(form.text("queue"))]}


async def jobs(opened: Opened, form: Form) -> Any:
    return {"jobs": [job.as_dict() for job in opened.jobs.list()]}


async def job(opened: Opened, form: Form) -> Any:
    return opened.jobs.get(form.text("id")).as_dict()


READINGS: dict[str, Reading] = {
    "overview": Reading(overview, (), 1),
    "queue": Reading(queue, ("queue",), 1),
    "history": Reading(history, ("queue", "days"), 10),
    "throughput": Reading(throughput, ("minutes", "queue"), 2),
    "tasks": Reading(tasks, ("queue", "state", "group", "page", "size", "newest", *FILTERS, "cursor"), 1),
    "task": Reading(task, ("queue", "id"), 0.5),
    "children": Reading(children, ("queue", "id", "gather", "page", "size"), 1),
    "waiting": Reading(waiting, ("queue",), 5),
    "types": Reading(types, ("minutes", "queue", "type"), 2),
    "errors": Reading(errors, ("hours", "queue", "type", "limit"), 2),
    "find": Reading(find, ("id",), 5),
    "servers": Reading(servers, (), 1),
    "leases": Reading(leases, ("queue", "limit"), 1),
    "schedules": Reading(schedules, (), 1),
    "schedule": Reading(schedule, ("id", "page", "size"), 2),
    "groups": Reading(groups, ("queue", "limit"), 2),
    "order-keys": Reading(order_keys, ("queue", "held", "limit"), 2),
    "limits": Reading(limits, ("queue",), 1),
    "jobs": Reading(jobs, (), 0.25),
    "job": Reading(job, ("id",), 0.25),
}
