"""API addresses that start jobs: bulk changes, counting, deleting a queue, diagnosis and repair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from veredus.dashboard.backend import Opened
from veredus.dashboard.change_routes import Changing
from veredus.dashboard.forms import Form
from veredus.dashboard.jobs import BackgroundJob
from veredus.dashboard.read_routes import FILTERS
from veredus.errors import ConfigError
from veredus.inspector.bulk_runner import BulkResult
from veredus.inspector.inspector import Inspector
from veredus.inspector.reader import checked
from veredus.inspector.search import Query
from veredus.inspector.statistics import FAILED_STATES
from veredus.model.task_status import check_children, check_then

VERBS = ("run", "archive", "delete", "cancel")
SHOWN = 500
"""Findings sent to a client; the rest is counted."""


async def start(opened: Opened, form: Form) -> Any:
    """Apply `verb` to all tasks of a state, or to those that match `type`, `payload`, `error` and `waiting`."""
    verb, queue = form.text("verb"), form.text("queue")
    if verb not in VERBS:
        raise ConfigError("verb", verb, f"one of {', '.join(VERBS)}", known=VERBS)
    state = "active" if verb == "cancel" else str(checked(form.text("state")))
    if verb == "cancel" and form.text("state", "active") != "active":
        raise ConfigError("state", form.text("state", ""), "active: a job cancels running tasks")
    where, group = _where(form), form.text("group", "") or None
    then, drop = check_then(form.text("then", "archive")), form.flag("drop_excess")
    from_start, children = form.flag("from_start"), form.text("children", "cancel")
    check_children(children)
    inspector = opened.inspector
    await inspector.queue(queue)  # refuse an unknown queue now instead of starting a job that fails

    async def work(job: BackgroundJob) -> dict[str, Any]:
        common: dict[str, Any] = {"where": where, "progress": job.progress, "stop": job.stop}
        if verb == "run":
            bulk = await inspector.run_all(queue, state, group=group, from_start=from_start, **common)
        elif verb == "archive":
            bulk = await inspector.archive_all(queue, state, group=group, drop_excess=drop, **common)
        elif verb == "delete":
            bulk = await inspector.delete_all(queue, state, group=group, **common)
        else:
            bulk = await inspector.cancel_all(queue, then=then, children=children, **common)
        return _ended(bulk)

    title = f"{verb} {'all' if where is None else 'matching'} {state} tasks of {queue}"
    return opened.jobs.start(BackgroundJob(verb=verb, title=title, queue=queue), work).as_dict()


async def count(opened: Opened, form: Form) -> Any:
    """Count the matching tasks, for the question before a bulk change."""
    queue, state = form.text("queue"), form.text("state")
    where, group = _where(form) or Query(), form.text("group", "") or None
    inspector = opened.inspector
    info = await inspector.queue(queue)
    total = getattr(info, str(checked(state)))

    async def work(job: BackgroundJob) -> dict[str, Any]:
        groups = [group]
        if state == "aggregating" and group is None:
            groups = [one.group for one in await inspector.groups(queue)]
        return await _count(inspector, job, [(queue, state, name) for name in groups], where, total)

    return opened.jobs.start(
        BackgroundJob(verb="count", title=f"count {state} tasks of {queue}", queue=queue), work
    ).as_dict()


async def _count(
    inspector: Inspector, job: BackgroundJob, lists: Sequence[tuple[str, str, str | None]], where: Query, total: int
) -> dict[str, Any]:
    """How many tasks of these lists (queue, state, group) match."""
    matching = scanned = 0
    job.progress(0, total)
    for queue, state, group in lists:
        cursor = ""
        while not job.stop.is_set():
            step = await inspector.search_page(queue, state, where, group=group, cursor=cursor, size=10**9, scan=1_000)
            matching, scanned, cursor = matching + len(step.tasks), scanned + step.scanned, step.cursor
            job.progress(min(scanned, total), total)
            if not cursor:
                break
    return {"count": matching, "scanned": scanned, "stopped": job.stop.is_set()}


# Groups of errors, in every queue.


async def run_errors(opened: Opened, form: Form) -> Any:
    """Make the tasks pending that failed with an error of this group."""
    group = await opened.inspector.error_group(form.text("group"))

    async def work(job: BackgroundJob) -> dict[str, Any]:
        return _ended(await opened.inspector.run_errors(group.id, progress=job.progress))

    title = f"run tasks with {group.error_class} in {group.type}"
    return opened.jobs.start(BackgroundJob(verb="run", title=title, stoppable=False), work).as_dict()


async def delete_errors(opened: Opened, form: Form) -> Any:
    """Delete the tasks that failed with an error of this group."""
    group = await opened.inspector.error_group(form.text("group"))

    async def work(job: BackgroundJob) -> dict[str, Any]:
        return _ended(await opened.inspector.delete_errors(group.id, progress=job.progress))

    title = f"delete tasks with {group.error_class} in {group.type}"
    return opened.jobs.start(BackgroundJob(verb="delete", title=title, stoppable=False), work).as_dict()


async def count_errors(opened: Opened, form: Form) -> Any:
    """Count the tasks that the two above would change."""
    inspector = opened.inspector
    group = await inspector.error_group(form.text("group"))
    infos = await asyncio.gather(*[inspector.queue(queue) for queue in group.queues])
    total = sum(getattr(info, state) for info in infos for state in FAILED_STATES)
    lists = [(queue, state, None) for queue in group.queues for state in FAILED_STATES]

    async def work(job: BackgroundJob) -> dict[str, Any]:
        return await _count(inspector, job, lists, Query(error_group=group.id), total)

    return opened.jobs.start(BackgroundJob(verb="count", title=f"count tasks with {group.error_class}"), work).as_dict()


async def delete_queue(opened: Opened, form: Form) -> Any:
    queue, force = form.text("queue"), form.flag("force")
    await opened.inspector.queue(queue)

    async def work(job: BackgroundJob) -> dict[str, Any]:
        await opened.inspector.delete_queue(queue, force=force, progress=job.progress)
        return {"deleted": queue}

    job = BackgroundJob(verb="delete queue", title=f"delete the queue {queue}", queue=queue, stoppable=False)
    return opened.jobs.start(job, work).as_dict()


async def diagnose(opened: Opened, form: Form) -> Any:
    """Check one queue or all; changes nothing."""
    queue = form.text("queue", "") or None
    if queue is not None:
        await opened.inspector.queue(queue)

    async def work(job: BackgroundJob) -> dict[str, Any]:
        job.findings = await opened.inspector.doctor.diagnose(queue, server=False)
        shown = [finding.as_dict() | {"number": n} for n, finding in enumerate(job.findings[:SHOWN])]
        return {"findings": shown, "total": len(job.findings)}

    title = f"examine {'every queue' if queue is None else queue}"
    return opened.jobs.start(
        BackgroundJob(verb="diagnose", title=title, queue=queue or "", stoppable=False), work
    ).as_dict()


async def repair(opened: Opened, form: Form) -> Any:
    """Repair one finding (`number`) of a diagnosis (`job`), or all that can be found in a queue or anywhere."""
    doctor, queue = opened.inspector.doctor, form.text("queue", "") or None
    if form.has("job"):
        found = opened.jobs.get(form.text("job")).findings
        number = form.number("number", -1, 0, max(0, len(found or ()) - 1))
        if not found:
            raise ConfigError("job", form.text("job"), "a diagnosis that has ended with findings")
        return {"repaired": await doctor.repair(found[number])}
    if queue is not None:
        await opened.inspector.queue(queue)

    async def work(job: BackgroundJob) -> dict[str, Any]:
        repaired = await doctor.repair_all(queue, progress=job.progress)
        return {"repaired": len(repaired)}

    title = f"repair {'every queue' if queue is None else queue}"
    return opened.jobs.start(
        BackgroundJob(verb="repair", title=title, queue=queue or "", stoppable=False), work
    ).as_dict()


async def stop(opened: Opened, form: Form) -> Any:
    return opened.jobs.stop(form.text("id")).as_dict()


def _where(form: Form) -> Query | None:
    where = Query(**{name: form.text(name, "") for name in FILTERS})
    return None if where == Query() else where


def _ended(bulk: BulkResult) -> dict[str, Any]:
    return {"done": bulk.done, "total": bulk.total, "dropped": bulk.dropped, "stopped": bulk.stopped}


_FILTERS = ("queue", "state", "group", *FILTERS)
CHANGES: dict[str, Changing] = {
    "jobs/start": Changing(start, ("verb", *_FILTERS, "then", "children", "drop_excess", "from_start")),
    "jobs/count": Changing(count, _FILTERS, writes=False),
    "jobs/stop": Changing(stop, ("id",), writes=False),
    "errors/run": Changing(run_errors, ("group",)),
    "errors/delete": Changing(delete_errors, ("group",)),
    "errors/count": Changing(count_errors, ("group",), writes=False),
    "queue/delete": Changing(delete_queue, ("queue", "force")),
    "doctor/diagnose": Changing(diagnose, ("queue",), writes=False),
    "doctor/repair": Changing(repair, ("queue", "job", "number")),
}
