"""API addresses that change something at once. Longer changes are jobs: see job_routes.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from veredus.client.handle import Handle
from veredus.dashboard.answers import described
from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.errors import ConfigError, ScheduleNotFound, StoreError, VeredusError
from veredus.model.task_status import CancelOutcome, check_children, check_then

AT_ONCE = 20

Change = Callable[[Opened, Form], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Changing:
    """One address: `POST api/<name>`."""

    change: Change
    fields: tuple[str, ...]
    writes: bool = True
    """False if it changes nothing in Redis, and is allowed in read-only mode."""


# Queues.


async def pause(opened: Opened, form: Form) -> Any:
    return {"changed": await opened.inspector.pause(form.text("queue"))}


async def resume(opened: Opened, form: Form) -> Any:
    return {"changed": await opened.inspector.resume(form.text("queue"))}


async def close(opened: Opened, form: Form) -> Any:
    await opened.inspector.queue(form.text("queue"))
    return {"changed": await opened.inspector.close_queue(form.text("queue"))}


async def open_(opened: Opened, form: Form) -> Any:
    await opened.inspector.queue(form.text("queue"))
    return {"changed": await opened.inspector.open_queue(form.text("queue"))}


# Tasks by id: one result each.


async def run(opened: Opened, form: Form) -> Any:
    front, from_start = form.flag("front"), form.flag("from_start")
    return await _each(form, lambda queue, one: opened.inspector.run(queue, one, front=front, from_start=from_start))


async def archive(opened: Opened, form: Form) -> Any:
    return await _each(form, opened.inspector.archive)


async def delete(opened: Opened, form: Form) -> Any:
    return await _each(form, opened.inspector.delete)


async def cancel(opened: Opened, form: Form) -> Any:
    then = check_then(form.text("then", "archive"))
    children = form.text("children", "cancel")
    check_children(children)
    return await _each(form, lambda queue, one: opened.inspector.cancel(queue, one, then=then, children=children))


async def requeue(opened: Opened, form: Form) -> Any:
    """Stop a running task and run it again; make any other task pending."""

    async def one(queue: str, task_id: str) -> Any:
        outcome = await opened.inspector.cancel(queue, task_id, then="retry")
        if outcome is CancelOutcome.CANCELLING:
            return outcome
        return await opened.inspector.run(queue, task_id)

    return await _each(form, one)


async def reschedule(opened: Opened, form: Form) -> Any:
    at, delay = form.instant("at"), form.seconds("delay")
    if (at is None) == (delay is None):
        raise ConfigError("at", None if at is None else str(at), "either `at` or `delay`")
    return await _each(form, lambda queue, one: opened.inspector.reschedule(queue, one, at=at, delay=delay))


async def move(opened: Opened, form: Form) -> Any:
    target, from_start = form.text("target"), form.flag("from_start")
    return await _each(form, lambda queue, one: opened.inspector.move(queue, one, target, from_start=from_start))


async def edit(opened: Opened, form: Form) -> Any:
    payload = form.content()
    from_start = form.flag("from_start")
    await opened.inspector.edit_payload(form.text("queue"), form.text("id"), payload, from_start=from_start)
    return {"changed": True}


_OPTIONS = ("queue", "delay", "at", "max_retry", "timeout", "retention", "task_id")


async def enqueue(opened: Opened, form: Form) -> Any:
    """Options that are not given are those of the task, if the dashboard has the app that declares it."""
    given: dict[str, Any] = {"delay": form.seconds("delay"), "at": form.instant("at")}
    given |= {name: form.seconds(name) for name in ("timeout", "retention")}
    given |= {name: form.text(name) for name in ("queue", "task_id") if form.has(name)}
    if form.has("max_retry"):
        given["max_retry"] = form.number("max_retry", 0, 0, 2**31 - 1)
    options = {name: value for name, value in given.items() if value is not None}
    return _sent(await opened.producer.enqueue(form.text("type"), form.content(), options))


def _sent(handle: Handle[Any]) -> dict[str, Any]:
    return {"id": handle.id, "queue": handle.queue, "created": handle.created}


# Schedules.


async def pause_schedule(opened: Opened, form: Form) -> Any:
    return {"changed": await opened.inspector.pause_schedule(form.text("id"))}


async def resume_schedule(opened: Opened, form: Form) -> Any:
    return {"changed": await opened.inspector.resume_schedule(form.text("id"))}


async def run_schedule(opened: Opened, form: Form) -> Any:
    entries = {entry.id: entry for entry in await opened.inspector.scheduler_entries()}
    if form.text("id") not in entries:
        raise ScheduleNotFound(form.text("id"), known=entries)
    return _sent(await opened.producer.run(entries[form.text("id")]))


async def _each(form: Form, verb: Callable[[str, str], Awaitable[Any]]) -> dict[str, Any]:
    """Handle a few tasks at a time, in the order given. A refused task does not stop the others, a lost server does."""
    queue, ids = form.text("queue"), form.ids()
    done: list[str] = []
    failed: list[dict[str, Any]] = []
    outcomes: dict[str, str] = {}

    async def attempt(task_id: str) -> Any:
        try:
            return await verb(queue, task_id)
        except StoreError:
            raise
        except VeredusError as exc:
            return exc

    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        for task_id, result in zip(part, await asyncio.gather(*map(attempt, part)), strict=True):
            if isinstance(result, VeredusError):
                failed.append({"id": task_id, **described(result)[1]})
                continue
            done.append(task_id)
            if isinstance(result, CancelOutcome):
                outcomes[task_id] = str(result)
    if failed and len(ids) == 1:
        raise TaskRefused(failed[0])
    return {"done": done, "failed": failed, "outcomes": outcomes}


class TaskRefused(VeredusError):
    """The only task of a request was refused."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error
        super().__init__(error["message"])


# Order keys and limits.


async def release(opened: Opened, form: Form) -> Any:
    return {"task_id": await opened.inspector.release_order_key(form.text("queue"), form.text("order_key"))}


async def remove_limit(opened: Opened, form: Form) -> Any:
    await opened.inspector.remove_limit(form.text("queue"), form.text("scope"))
    return {"changed": True}


# Workers.


async def quiet_worker(opened: Opened, form: Form) -> Any:
    return {"worker": (await opened.inspector.quiet_worker(form.text("worker"))).as_dict()}


async def stop_worker(opened: Opened, form: Form) -> Any:
    return {"worker": (await opened.inspector.stop_worker(form.text("worker"))).as_dict()}


# Sessions of the gateway.


async def close_session(opened: Opened, form: Form) -> Any:
    ended = await opened.notifier.disconnect(session=form.text("id"), reason=form.text("reason", ""))
    return {"changed": ended == 1}


async def disconnect_user(opened: Opened, form: Form) -> Any:
    return {"ended": await opened.notifier.disconnect(user=form.text("user"), reason=form.text("reason", ""))}


async def revoke(opened: Opened, form: Form) -> Any:
    return {"ended": await opened.notifier.revoke(user=form.text("user"), before=form.instant("before"))}


CHANGES: dict[str, Changing] = {
    "queue/pause": Changing(pause, ("queue",)),
    "queue/resume": Changing(resume, ("queue",)),
    "queue/close": Changing(close, ("queue",)),
    "queue/open": Changing(open_, ("queue",)),
    "tasks/run": Changing(run, ("queue", "ids", "front", "from_start")),
    "tasks/archive": Changing(archive, ("queue", "ids")),
    "tasks/delete": Changing(delete, ("queue", "ids")),
    "tasks/cancel": Changing(cancel, ("queue", "ids", "then", "children")),
    "tasks/requeue": Changing(requeue, ("queue", "ids")),
    "tasks/reschedule": Changing(reschedule, ("queue", "ids", "at", "delay")),
    "tasks/move": Changing(move, ("queue", "ids", "target", "from_start")),
    "enqueue": Changing(enqueue, ("type", "payload", "payload64", *_OPTIONS)),
    "schedule/pause": Changing(pause_schedule, ("id",)),
    "schedule/resume": Changing(resume_schedule, ("id",)),
    "schedule/run": Changing(run_schedule, ("id",)),
    "task/edit": Changing(edit, ("queue", "id", "payload", "payload64", "from_start")),
    "order-key/release": Changing(release, ("queue", "order_key")),
    "limit/remove": Changing(remove_limit, ("queue", "scope")),
    "worker/quiet": Changing(quiet_worker, ("worker",)),
    "worker/stop": Changing(stop_worker, ("worker",)),
    "session/close": Changing(close_session, ("id", "reason")),
    "user/disconnect": Changing(disconnect_user, ("user", "reason")),
    "user/revoke": Changing(revoke, ("user", "before")),
}
