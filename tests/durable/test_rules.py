"""The pure rules of durable calls, and what they say without a worker."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from veredus import SkipRetry, current
from veredus.errors import ConcurrentDurableCall, ConcurrentWait, ConfigError, StepFailed, StepResultError
from veredus.handlers.context import Context
from veredus.model.durable import STEP, CallNames, OpenCalls, StepRecord, event_of, shown_name
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.run_info import run_info
from veredus.store.tasks.emitted import Waiter


async def test_outside_a_handler_and_without_a_name() -> None:
    with pytest.raises(LookupError, match=r"current\(\) works only inside a handler"):
        await current().step(asyncio.sleep, 0)
    context = Context(Job(TaskMessage(type="t", id="a", queue="q")), 0.0)
    with pytest.raises(LookupError, match="durable calls work only inside a handler that a worker runs"):
        await context.step(asyncio.sleep, 0)


def test_the_errors_steer_what_they_should() -> None:
    assert issubclass(StepResultError, SkipRetry)
    assert not issubclass(StepFailed, SkipRetry)
    assert str(StepFailed("charge", "ValueError", "no")) == "step 'charge' failed: ValueError: no"


def test_names_are_numbered_in_the_order_of_their_use() -> None:
    names = CallNames()
    fields = [names.take(STEP, "a", 1), names.take(STEP, "b", 2), names.take(STEP, "a", 1), names.take("z:", "a")]
    assert fields == ["s:a", "s:b", f"s:a{chr(0)}2", "z:a"]
    assert [shown_name(field) for field in fields] == ["a", "b", "a #2", "a"]
    assert event_of(fields[2]) == "a"
    with pytest.raises(ConfigError, match="a name that no other step of this run uses"):
        names.take(STEP, "a", 2)


def test_one_name_is_not_open_twice() -> None:
    calls = OpenCalls()
    calls.enter("s:a", is_named=True, is_wait=False)
    calls.enter("s:b", is_named=True, is_wait=False)
    with pytest.raises(ConcurrentDurableCall, match="called a second time while it runs"):
        calls.enter(f"s:a{chr(0)}2", is_named=True, is_wait=False)
    calls.leave("s:a", is_wait=False)
    calls.leave("s:b", is_wait=False)
    calls.enter("z:nap", is_named=True, is_wait=True)
    with pytest.raises(ConcurrentWait, match="one thing at a time"):
        calls.enter("s:a", is_named=True, is_wait=False)


@pytest.mark.parametrize("field", ["e:paid", "e:paid\0002"])
def test_a_task_that_waits_is_noted_in_64_bytes(field: str) -> None:
    waiter = Waiter("orders", str(uuid4()), "0123456789", field)
    assert len(waiter.pack("paid")) <= 64
    assert Waiter.unpack("paid", waiter.pack("paid")) == waiter


def test_steps_that_begin_in_one_millisecond_are_shown_in_their_order() -> None:
    began = 1_800_000_000_000_100
    names = ["second", "first", "third"]
    fields = {
        f"s:{name}": StepRecord(False, began + place, 1, 1, b"").pack()
        for name, place in zip(names, (2, 1, 3), strict=True)
    }
    fields |= {"e:event": b"0", "b:e:event": b"%d" % (began // 1000)}
    run = run_info("m", fields, f"event 0 {began // 1000} e:event", {}, {})
    assert [one.name for one in run.steps] == ["first", "second", "third", "event"]


def test_a_sleep_that_is_over_is_not_taken_for_an_event_of_the_same_name() -> None:
    fields = {"z:x": b"2000", "b:z:x": b"1000", "e:x": b"0", "b:e:x": b"2000"}
    run = run_info("m", fields, "event 0 2000 e:x", {}, {})
    assert [(one.kind, one.outcome) for one in run.steps] == [("sleep", "done"), ("event", "waiting")]
