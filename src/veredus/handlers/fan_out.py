"""Fan-outs: a durable handler enqueues children, leaves its worker, and goes on when all of them have ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.client.call import Call
from veredus.client.children import ChildSender, ParentTask, digest_of
from veredus.errors import ChildFailed, ChildUnknown, PayloadError, StepChanged, StepResultError
from veredus.model.durable import (
    ALL_THERE,
    ANCESTORS,
    BEGAN,
    FAILED,
    GATHER,
    LARGEST_RESULTS,
    PORTION,
    SENT,
    FanOutRecord,
    Wait,
    check_durable_name,
    child_failure,
    child_id,
    child_ids,
    read_failure,
    read_sent,
    shown_name,
)
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.runs import JoinRow

if TYPE_CHECKING:
    from veredus.handlers.durable_run import DurableRun


class Gathered(NamedTuple):
    """A fan-out whose children have all ended."""

    key: str
    record: FanOutRecord


async def gathered(run: DurableRun, sender: ChildSender, name: str, calls: Sequence[Call[Any]]) -> Gathered | None:
    """Enqueue children and wait for all of them; None if the handler is to leave."""
    await run.check_alive(check_durable_name("name", name))
    field = run.names.take(GATHER, name)
    run.open_calls.enter(field, is_named=True, is_wait=True)
    try:
        await run.read()
        key = field[len(GATHER) :]
        record = await _spawn(run, sender, key, calls)
        run.fan_outs[key] = record
        if not calls or ALL_THERE + key in run.fields:
            run.passed(field)
            return Gathered(key, record)
        await run.leave(Wait("children", 0, ALL_THERE + key))
        return None
    finally:
        run.open_calls.leave(field, is_wait=True)


async def gather(
    run: DurableRun, sender: ChildSender, name: str, calls: Sequence[Call[Any]], *, return_errors: bool
) -> list[Any] | None:
    """The results of children, in the order of the calls; None if the handler is to leave."""
    found = await gathered(run, sender, name, calls)
    if found is None:
        return None
    results: list[Any] = []
    size = 0
    async for start, outcomes in _pages(run, found):
        size += sum(map(len, outcomes.values()))
        if size > LARGEST_RESULTS:
            raise StepResultError(
                f"gather {shown_name(GATHER + found.key)!r}: its results have more than {LARGEST_RESULTS:,} bytes: "
                "read them one after the other, with `async for result in job.gather_each(...)`"
            )
        results += _results(run, sender, found.key, calls, start, outcomes, return_errors=return_errors)
    return results


async def each_result(
    run: DurableRun, sender: ChildSender, found: Gathered, calls: Sequence[Call[Any]], *, return_errors: bool
) -> AsyncIterator[Any]:
    """The results of children, in the order of the calls, read in pages."""
    async for start, outcomes in _pages(run, found):
        for result in _results(run, sender, found.key, calls, start, outcomes, return_errors=return_errors):
            yield result


async def _spawn(run: DurableRun, sender: ChildSender, key: str, calls: Sequence[Call[Any]]) -> FanOutRecord:
    """Enqueue the children that are not known to be enqueued. The record of the fan-out is written first, and after
    each portion the number of those sent; each write checks that this worker still owns the parent. A child has the
    same id each time."""
    known, sent = run.fields.get(GATHER + key), read_sent(run.fields.get(SENT + key, b""))
    checked = sender.checked(calls, _parent(run)) if known is None or sent < len(calls) else ()
    digest = digest_of(calls)
    if known is None:
        run.check_room(GATHER + key)
        await run.insist(lambda: sender.check_open(checked))
        record = FanOutRecord(len(calls), digest, _queues(calls))
        await run.write({GATHER + key: record.pack(), BEGAN + GATHER + key: b"%d" % (run.now_us() // 1000)})
    else:
        record = FanOutRecord.unpack(known)
        if (record.size, record.digest) != (len(calls), digest):
            raise StepChanged(
                f"gather {shown_name(GATHER + key)!r} has {len(calls):,} children that differ from the "
                f"{record.size:,} of the previous attempt: build the calls from the result of a step"
            )
    job = run.job
    if known is not None and sent < record.size:
        await run.write({GATHER + key: known})
    for start in range(sent, record.size, PORTION):
        portion = checked[start : start + PORTION]
        ids = child_ids(job.id, run.mark, key, range(start, start + len(portion)))
        children = [
            ChildTask(call.options.queue, task_id, job.queue, job.id, run.mark, key, at)
            for at, (task_id, call) in enumerate(zip(ids, portion, strict=True), start)
        ]
        await _send(run, sender, portion, children)
        await run.write({SENT + key: b"%d" % (start + len(portion))})
    return record


async def _send(
    run: DurableRun, sender: ChildSender, calls: Sequence[Call[Any]], children: Sequence[ChildTask]
) -> None:
    refused = await run.insist(lambda: sender.send(calls, children))
    if refused:
        outcome = child_failure("an equal task already exists (it is unique)", "refused")
        rows = [
            JoinRow(children[at].parent, run.mark, children[at].name, children[at].position, outcome) for at in refused
        ]
        await run.insist(lambda: run.store.runs.join(run.job.queue, rows))


def _parent(run: DurableRun) -> ParentTask:
    keys = tuple(json.loads(run.job.headers.get(ANCESTORS, "[]")))
    if run.order_key:
        keys += (f"{run.job.queue}\0{run.order_key}",)
    return ParentTask(run.job.queue, run.job.id, keys)


def _queues(calls: Sequence[Call[Any]]) -> tuple[tuple[str, int, bool], ...]:
    rows = groupby(calls, lambda call: (call.options.queue, (call.options.retention or 0) > 0))
    return tuple((queue, sum(1 for _ in group), kept) for (queue, kept), group in rows)


async def _pages(run: DurableRun, found: Gathered) -> AsyncIterator[tuple[int, dict[int, bytes]]]:
    """The outcomes of up to 1,000 children at a time, with the position of the first. Outcomes that have expired since
    may still be stored with the children."""
    job, store, (key, record) = run.job, run.store, found
    queues = record.queue_of()
    start = 0
    while start < record.size:
        outcomes, end = await run.insist(
            partial(store.runs.outcomes, job.queue, job.id, run.mark, key, start, record.size)
        )
        lapsed = [
            ChildTask(queues[at], child_id(job.id, run.mark, key, at), job.queue, job.id, run.mark, key, at)
            for at in range(start, end)
            if at not in outcomes
        ]
        if lapsed:
            seen = await run.insist(partial(store.children.look, lapsed))
            outcomes |= {one.child.position: one.outcome for one in seen if one.outcome is not None}
        unknown = child_failure("its result is no longer kept", "unknown")
        yield start, {child.position: unknown for child in lapsed} | outcomes
        start = end


def _results(
    run: DurableRun,
    sender: ChildSender,
    key: str,
    calls: Sequence[Call[Any]],
    start: int,
    outcomes: dict[int, bytes],
    *,
    return_errors: bool,
) -> list[Any]:
    """Of one page. Raises the error of the first child that failed, unless errors are returned."""
    found: list[Any] = []
    for at, call in enumerate(calls[start : start + len(outcomes)], start):
        outcome = outcomes[at]
        if outcome[:1] == FAILED:
            error = _error(child_id(run.job.id, run.mark, key, at), call.type, outcome)
            if not return_errors:
                raise error
            found.append(error)
            continue
        try:
            found.append(sender.decode(call.type, outcome))
        except PayloadError as exc:
            raise StepResultError(f"what child {at} ({call.type}) returned does not fit: {exc}") from exc
    return found


def _error(task_id: str, task_type: str, outcome: bytes) -> ChildFailed:
    kind, error = read_failure(outcome[1:])
    raised = ChildUnknown if kind == "unknown" else ChildFailed
    return raised(f"child {task_id} ({task_type}) {kind}: {error}", task_id=task_id, error=error)


async def is_over(run: DurableRun) -> bool:
    """Whether the parent's run has ended, even if another process has settled it."""
    mark, state = await run.store.runs.mark_and_field(run.job.queue, run.job.id, "state")
    return mark != run.mark or state == b"completed"


async def release(run: DurableRun) -> None:
    """The parent has succeeded: the results of its children are no longer needed. What this misses expires."""
    job = run.job
    for key, record in run.fan_outs.items():
        at, needless = 0, dict[str, list[str]]()
        for queue, count, is_kept in record.queues:
            if not is_kept:
                needless.setdefault(queue, []).extend(child_ids(job.id, run.mark, key, range(at, at + count)))
            at += count
        for queue, ids in needless.items():
            await run.store.children.forget(queue, ids)
        await run.store.runs.unlink_kids(job.queue, job.id, run.mark, key, record.size)
