"""What becomes of an attempt: whom the worker tells, and what it asks Redis before it decides."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.integration.support import Look, go_message
from tests.support.servers import VALKEY_ONLY
from veredus import App
from veredus.errors import LeaseLost
from veredus.handlers.executors.processes import ProcessDied, ProcessNotReady
from veredus.model.lease import Lease
from veredus.model.settlement import Archive, Retry, Settlement
from veredus.model.verdict import Action, End, Outcome, Verdict
from veredus.store.tasks.leases import Claimed
from veredus.wire.messages import decode_task, encode_task
from veredus.worker.attempt import Attempt
from veredus.worker.settlements import settlement_for
from veredus.worker.worker import Worker

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


def _attempt(**given: Any) -> Attempt:
    message = go_message("t", task_id="a")
    for name, value in given.items():
        setattr(message, name, value)
    lease = Lease(time.monotonic() + 60)
    return Attempt("default", "a", "w:1", encode_task(message), message, lease, started_at=time.time())


def _settlement(worker: Worker, attempt: Attempt, outcome: Outcome, verdict: Verdict) -> Settlement | None:
    return settlement_for(
        attempt, outcome, verdict, worker.config, worker._execution.mux, worker._execution.records, time.time()
    )


async def _judge(app: App, outcome: Outcome, **settings: Any) -> Verdict:
    async with app.worker(["default"], **settings) as worker:
        return await worker._execution.attempt_runner._judge.failed(_attempt(), outcome)


@pytest.mark.parametrize(
    ("outcome", "is_told"),
    [
        (Outcome(End.FAILED, error=ValueError()), True),
        (Outcome(End.TIMED_OUT, error=ValueError()), True),
        (Outcome(End.ABORTED, error=asyncio.CancelledError()), False),
        (Outcome(End.LEASE_LOST, error=LeaseLost("gone")), False),
        (Outcome(End.CANCELLED, error=asyncio.CancelledError(), then="archive"), False),
        (Outcome(End.CANCELLED, error=asyncio.CancelledError()), True),
    ],
    ids=lambda value: f"{value.end.value} {value.then}" if isinstance(value, Outcome) else str(value),
)
async def test_on_error_is_told_of_failures_only(app: App, outcome: Outcome, is_told: bool) -> None:
    told: list[BaseException] = []
    await _judge(app, outcome, on_error=lambda error, job: told.append(error))
    assert bool(told) == is_told


@pytest.mark.parametrize(
    ("error", "losses", "crashes", "action"),
    [
        (ProcessDied("was ended by SIGSEGV"), None, 1, Action.RETRY),
        (ProcessDied("was ended by SIGSEGV"), "1", 2, Action.ARCHIVE),
        (ProcessDied("was ended by SIGSEGV"), "damaged", 1, Action.RETRY),
        (ProcessNotReady("has not started"), "1", 0, Action.RETRY),
        (ValueError(), "1", 0, Action.RETRY),
    ],
)
async def test_only_a_process_that_died_while_it_ran_the_task_counts_as_a_crash(
    app: App, redis_client: Any, look: Look, error: Exception, losses: str | None, crashes: int, action: Action
) -> None:
    if losses is not None:
        await redis_client.hset(look.task("a"), "losses", losses)
    outcome = Outcome(End.FAILED, error=error)
    assert (await _judge(app, outcome, max_crashes=2)).action is action
    assert outcome.crashes == crashes
    await redis_client.delete(look.task("a"))


@pytest.mark.parametrize(
    ("deferrals", "most", "action"),
    [("2", 3, Action.RETRY), ("3", 3, Action.ARCHIVE), ("99", 0, Action.RETRY), ("damaged", 3, Action.RETRY)],
)
async def test_a_task_is_put_off_so_many_times_and_no_more(
    app: App, redis_client: Any, look: Look, deferrals: str, most: int, action: Action
) -> None:
    await redis_client.hset(look.task("a"), "deferrals", deferrals)
    outcome = Outcome(End.FAILED, error=ValueError())
    assert (await _judge(app, outcome, is_failure=lambda error: False, max_deferrals=most)).action is action
    await redis_client.delete(look.task("a"))


async def test_an_is_failure_that_raises_makes_it_a_failure(app: App) -> None:
    def raises(error: BaseException) -> bool:
        raise ZeroDivisionError

    assert (await _judge(app, Outcome(End.FAILED, error=ValueError()), is_failure=raises)).is_failure


@pytest.mark.parametrize(
    ("of_task", "of_worker", "front"), [(None, True, True), (False, True, False), (True, False, True)]
)
async def test_a_task_says_better_than_its_worker_where_a_retry_goes(
    app: App, of_task: bool | None, of_worker: bool, front: bool
) -> None:
    @app.task(name="t", retry_front=of_task)
    async def work() -> None: ...

    async with app.worker(["default"], retry_front=of_worker) as worker:
        failed = Outcome(End.FAILED, error=ValueError())
        settlement = _settlement(worker, _attempt(), failed, Verdict(Action.RETRY))
        lost = worker._roles.recoverer._judge("default", "r:1", Claimed("a", _attempt().data, 1, ""))
    for one in (settlement, lost):
        assert isinstance(one, Retry)
        assert bool(one.front) is front


@pytest.mark.parametrize(("is_failure", "retried"), [(True, 1), (False, 0)])
async def test_what_is_put_off_uses_up_no_retry(app: App, is_failure: bool, retried: int) -> None:
    async with app.worker(["default"]) as worker:
        verdict = Verdict(Action.RETRY, is_failure=is_failure)
        settlement = _settlement(worker, _attempt(), Outcome(End.FAILED, error=ValueError("no")), verdict)
    assert isinstance(settlement, Retry)
    message = decode_task(settlement.message)
    assert (message.retried, message.error_msg, settlement.is_failure) == (retried, "ValueError: no", is_failure)


@pytest.mark.parametrize(
    ("end", "tracebacks", "is_kept"),
    [(End.FAILED, True, True), (End.FAILED, False, False), (End.CANCELLED, True, False)],
)
async def test_a_cancelled_task_keeps_no_traceback(app: App, end: End, tracebacks: bool, is_kept: bool) -> None:
    async with app.worker(["default"], tracebacks=tracebacks) as worker:
        try:
            raise ValueError
        except ValueError as error:
            outcome = Outcome(end, error=error)
        settlement = _settlement(worker, _attempt(), outcome, Verdict(Action.ARCHIVE))
    assert isinstance(settlement, Archive)
    assert bool(settlement.traceback) is is_kept


@pytest.mark.parametrize(
    ("retried", "losses", "kind", "counted"), [(0, 1, Retry, 1), (0, 2, Retry, 1), (3, 1, Archive, 3)]
)
async def test_a_lost_worker_uses_up_a_retry_and_from_the_second_on_the_task_waits(
    app: App, retried: int, losses: int, kind: type, counted: int
) -> None:
    async with app.worker(["default"], retry_delay=lambda retried, error, job: 7.0) as worker:
        data = _attempt(retry=3, retried=retried).data
        settlement = worker._roles.recoverer._judge("default", "r:1", Claimed("a", data, losses, ""))
    assert type(settlement) is kind
    assert isinstance(settlement, Retry | Archive)
    assert decode_task(settlement.message).retried == counted
    if isinstance(settlement, Retry):
        assert settlement.delay_ms == (7000 if losses > 1 else 0)
