"""What takes long and is therefore a job: a verb for all tasks of a state, counting, deleting a queue, the doctor."""

from __future__ import annotations

from typing import Any

from veredus.dashboard.backend import Opened
from veredus.dashboard.changing import Changing
from veredus.dashboard.forms import Form
from veredus.dashboard.jobs import Job
from veredus.errors import ConfigError
from veredus.inspector.bulk import Bulk
from veredus.inspector.looking import checked
from veredus.inspector.search import Query
from veredus.model.ending import check_then

VERBS = ("run", "archive", "delete", "cancel")
SHOWN = 500
"""Findings that a client gets; the rest is counted."""


async def start(opened: Opened, form: Form) -> Any:
    """`verb` for all tasks of a state, or for those that fit `type`, `payload` and `error`."""
    verb, queue = form.text("verb"), form.text("queue")
    if verb not in VERBS:
        raise ConfigError("verb", verb, f"one of {', '.join(VERBS)}", known=VERBS)
    state = "active" if verb == "cancel" else str(checked(form.text("state")))
    if verb == "cancel" and form.text("state", "active") != "active":
        raise ConfigError("state", form.text("state", ""), "active: a job cancels running tasks")
    where, group = _where(form), form.text("group", "") or None
    then, drop = check_then(form.text("then", "archive")), form.flag("drop_excess")
    inspector = opened.inspector
    await inspector.queue(queue)  # an unknown queue is refused now, not by a job that fails

    async def work(job: Job) -> dict[str, Any]:
        told: dict[str, Any] = {"where": where, "progress": job.progress, "stop": job.stop}
        if verb == "run":
            bulk = await inspector.run_all(queue, state, group=group, **told)
        elif verb == "archive":
            bulk = await inspector.archive_all(queue, state, group=group, drop_excess=drop, **told)
        elif verb == "delete":
            bulk = await inspector.delete_all(queue, state, group=group, **told)
        else:
            bulk = await inspector.cancel_all(queue, then=then, **told)
        return _ended(bulk)

    title = f"{verb} {'all' if where is None else 'fitting'} {state} tasks of {queue}"
    return opened.jobs.start(Job(verb=verb, title=title, queue=queue), work).as_dict()


async def count(opened: Opened, form: Form) -> Any:
    """How many tasks fit: what has to be known before they are changed."""
    queue, state = form.text("queue"), form.text("state")
    where, group = _where(form) or Query(), form.text("group", "") or None
    inspector = opened.inspector
    info = await inspector.queue(queue)
    total = getattr(info, str(checked(state)))

    async def work(job: Job) -> dict[str, Any]:
        fitting = scanned = 0
        groups = [group]
        if state == "aggregating" and group is None:
            groups = [one.group for one in await inspector.groups(queue)]
        job.progress(0, total)
        for name in groups:
            cursor = ""
            while not job.stop.is_set():
                step = await inspector.search_page(
                    queue, state, where, group=name, cursor=cursor, size=10**9, scan=1_000
                )
                fitting, scanned, cursor = fitting + len(step.tasks), scanned + step.scanned, step.cursor
                job.progress(min(scanned, total), total)
                if not cursor:
                    break
        return {"count": fitting, "scanned": scanned, "stopped": job.stop.is_set()}

    return opened.jobs.start(Job(verb="count", title=f"count {state} tasks of {queue}", queue=queue), work).as_dict()


async def delete_queue(opened: Opened, form: Form) -> Any:
    queue, force = form.text("queue"), form.flag("force")
    await opened.inspector.queue(queue)

    async def work(job: Job) -> dict[str, Any]:
        await opened.inspector.delete_queue(queue, force=force, progress=job.progress)
        return {"deleted": queue}

    job = Job(verb="delete queue", title=f"delete the queue {queue}", queue=queue, stoppable=False)
    return opened.jobs.start(job, work).as_dict()


async def diagnose(opened: Opened, form: Form) -> Any:
    """Examine one queue or all; nothing is changed."""
    queue = form.text("queue", "") or None
    if queue is not None:
        await opened.inspector.queue(queue)

    async def work(job: Job) -> dict[str, Any]:
        job.kept = await opened.inspector.doctor.diagnose(queue, server=False)
        shown = [finding.as_dict() | {"number": n} for n, finding in enumerate(job.kept[:SHOWN])]
        return {"findings": shown, "total": len(job.kept)}

    title = f"examine {'every queue' if queue is None else queue}"
    return opened.jobs.start(Job(verb="diagnose", title=title, queue=queue or "", stoppable=False), work).as_dict()


async def repair(opened: Opened, form: Form) -> Any:
    """Mend one finding (`number`) of a diagnosis (`job`), or all that can be found in a queue or anywhere."""
    doctor, queue = opened.inspector.doctor, form.text("queue", "") or None
    if form.has("job"):
        found = opened.jobs.get(form.text("job")).kept
        number = form.number("number", -1, 0, max(0, len(found or ()) - 1))
        if not found:
            raise ConfigError("job", form.text("job"), "a diagnosis that has ended and found something")
        return {"mended": await doctor.repair(found[number])}
    if queue is not None:
        await opened.inspector.queue(queue)

    async def work(job: Job) -> dict[str, Any]:
        mended = await doctor.repair_all(queue, progress=job.progress)
        return {"mended": len(mended)}

    title = f"mend {'every queue' if queue is None else queue}"
    return opened.jobs.start(Job(verb="repair", title=title, queue=queue or "", stoppable=False), work).as_dict()


async def stop(opened: Opened, form: Form) -> Any:
    return opened.jobs.stop(form.text("id")).as_dict()


def _where(form: Form) -> Query | None:
    where = Query(type=form.text("type", ""), payload=form.text("payload", ""), error=form.text("error", ""))
    return None if where == Query() else where


def _ended(bulk: Bulk) -> dict[str, Any]:
    return {"done": bulk.done, "total": bulk.total, "dropped": bulk.dropped, "stopped": bulk.stopped}


_FILTERS = ("queue", "state", "group", "type", "payload", "error")
CHANGES: dict[str, Changing] = {
    "jobs/start": Changing(start, ("verb", *_FILTERS, "then", "drop_excess")),
    "jobs/count": Changing(count, _FILTERS, writes=False),
    "jobs/stop": Changing(stop, ("id",), writes=False),
    "queue/delete": Changing(delete_queue, ("queue", "force")),
    "doctor/diagnose": Changing(diagnose, ("queue",), writes=False),
    "doctor/repair": Changing(repair, ("queue", "job", "number")),
}
