"""Steps: functions that run until they have succeeded once, and what is kept of them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from veredus.client.trace_metadata import STEP_SPANS
from veredus.errors import LeaseLost, PayloadError, ResultError, RevokeTask, SkipRetry, StepFailed, StepResultError
from veredus.events import StepEnded
from veredus.handlers.running_step import STEP as RUNNING
from veredus.handlers.running_step import RunningStep
from veredus.model.durable import (
    LARGEST_RESULT,
    STEP,
    StepRecord,
    check_durable_name,
    identity,
    pack_failure,
    shown_name,
    step_name,
)
from veredus.model.failure import describe
from veredus.model.options import seconds
from veredus.wire.results import Decode, encode_result, result_decoder

if TYPE_CHECKING:
    from veredus.handlers.durable_run import DurableRun

NOT_FAILURES = (SkipRetry, RevokeTask, StepFailed, LeaseLost)
"""Errors that end the whole task and not only the step."""


async def step(
    run: DurableRun,
    function: Callable[..., Any],
    args: Sequence[Any],
    name: str | None,
    retries: int,
    delay: float | timedelta,
) -> Any:
    """Run a function unless it has succeeded before; its result as it was kept."""
    given = step_name(function) if name is None else check_durable_name("name", name)
    pause = seconds("delay", delay)
    await run.check_alive(given)
    field = run.names.take(STEP, given, identity(function))
    run.open_calls.enter(field, is_named=name is not None, is_wait=False)
    try:
        await run.read()
        kept = run.fields.get(field)
        record = StepRecord.unpack(kept) if kept is not None else await _run(run, field, function, args, retries, pause)
        run.passed(field)
        if record.is_failure:
            raise StepFailed(shown_name(field), *record.failure)
        return _decoded(shown_name(field), function, record.data)
    finally:
        run.open_calls.leave(field, is_wait=False)


async def _run(
    run: DurableRun, field: str, function: Callable[..., Any], args: Sequence[Any], retries: int, pause: float
) -> StepRecord:
    run.check_room(field)
    began_us, began = run.now_us(), time.perf_counter()

    def record(is_failure: bool, data: bytes) -> StepRecord:
        took = time.perf_counter() - began
        run.tell(StepEnded(run.job.queue, run.job.type, "failed" if is_failure else "done", took))
        return StepRecord(is_failure, began_us, round(took * 1e6), run.job.retried + 1, data)

    token = RUNNING.set(RunningStep(f"{run.job.id}:{run.mark}:{shown_name(field)}"))
    try:
        if STEP_SPANS:
            with ExitStack() as spans:
                for span in STEP_SPANS:
                    spans.enter_context(span(shown_name(field), run.job))
                value = await _try(run, function, args, retries, pause)
        else:
            value = await _try(run, function, args, retries, pause)
    except NOT_FAILURES:
        raise
    except Exception as exc:
        failed = record(True, pack_failure(type(exc).__name__, describe(exc).partition(": ")[2]))
        run.keep_failure(field, failed.pack())
        raise StepFailed(shown_name(field), *failed.failure) from exc
    finally:
        RUNNING.reset(token)
    done = record(False, _encoded(shown_name(field), value))
    run.inside(field)
    await run.write({field: done.pack()})
    return done


async def _try(run: DurableRun, function: Callable[..., Any], args: Sequence[Any], retries: int, pause: float) -> Any:
    for tries_left in range(retries, -1, -1):
        try:
            if inspect.iscoroutinefunction(_plain(function)):
                return await function(*args)
            value = await run.run_sync(lambda: function(*args))
            return await value if inspect.isawaitable(value) else value
        except NOT_FAILURES:
            raise
        except Exception:
            if not tries_left:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _encoded(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    try:
        data = b"b" + value if isinstance(value, bytes) else b"j" + encode_result(value, f"step {name}")
    except ResultError as exc:
        raise StepResultError(f"step {name!r}: {exc}") from exc
    if len(data) > LARGEST_RESULT:
        raise StepResultError(
            f"step {name!r} returned {len(data):,} bytes, {LARGEST_RESULT:,} can be kept: store large data elsewhere "
            "and return its address"
        )
    return data


def _decoded(name: str, function: Callable[..., Any], data: bytes) -> Any:
    """As the function's annotation says, the first time and at each replay."""
    if not data:
        return None
    if data[:1] == b"b":
        return data[1:]
    try:
        return _decoder(_plain(function))(data[1:])
    except PayloadError as exc:
        raise StepResultError(f"step {name!r}: the kept result no longer fits its return annotation: {exc}") from exc


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside a task or a partial."""
    inner: Callable[..., Any] = inspect.unwrap(getattr(function, "func", function))
    return inner


@lru_cache(256)
def _decoder(function: Callable[..., Any]) -> Decode:
    return result_decoder(function)
