"""The judge: what an outcome means for the task."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import RevokeTask, SkipRetry
from veredus.model.message import TaskMessage, deadline_of
from veredus.model.verdict import Action, End, Outcome, judge, judge_lost_lease, wraps, write_failure


def message(retry: int = 3, retried: int = 0, retention: int = 0, timeout: int = 0, deadline: int = 0) -> TaskMessage:
    return TaskMessage(
        type="t",
        id="1",
        queue="q",
        retry=retry,
        retried=retried,
        retention=retention,
        timeout=timeout,
        deadline=deadline,
    )


def _chain(*errors: BaseException) -> BaseException:
    for outer, inner in itertools.pairwise(errors):
        outer.__cause__ = inner
    return errors[0]


@pytest.mark.parametrize(
    ("outcome", "task", "action"),
    [
        (Outcome(End.SUCCEEDED), message(), Action.DONE),
        (Outcome(End.SUCCEEDED), message(retention=5), Action.COMPLETE),
        (Outcome(End.SUCCEEDED, result=b""), message(), Action.COMPLETE),
        (Outcome(End.FAILED, error=ValueError()), message(), Action.RETRY),
        (Outcome(End.FAILED, error=ValueError()), message(3, 2), Action.RETRY),
        (Outcome(End.FAILED, error=ValueError()), message(3, 3), Action.ARCHIVE),
        (Outcome(End.FAILED, error=ValueError()), message(0), Action.ARCHIVE),
        (Outcome(End.FAILED, error=SkipRetry()), message(), Action.ARCHIVE),
        (Outcome(End.FAILED, error=_chain(KeyError(), ValueError(), SkipRetry())), message(), Action.ARCHIVE),
        (Outcome(End.FAILED, error=RevokeTask()), message(0), Action.DONE),
        (Outcome(End.FAILED, error=_chain(SkipRetry(), RevokeTask())), message(retention=9), Action.DONE),
        (Outcome(End.TIMED_OUT), message(), Action.RETRY),
        (Outcome(End.CANCELLED, error=asyncio.CancelledError()), message(), Action.RETRY),
        (Outcome(End.CANCELLED), message(0), Action.ARCHIVE),
        (Outcome(End.UNREADABLE, error=ValueError()), message(), Action.RETRY),
        (Outcome(End.UNREADABLE, error=ValueError()), message(3, 3), Action.ARCHIVE),
        (Outcome(End.ABORTED), message(0), Action.REQUEUE),
        (Outcome(End.LEASE_LOST), message(0), Action.NOTHING),
    ],
)
def test_verdicts(outcome: Outcome, task: TaskMessage, action: Action) -> None:
    assert judge(task, outcome, result_ttl=60, is_failure=True).action is action


@given(st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_a_failure_is_archived_exactly_when_its_retries_are_used_up(retry: int, retried: int, counts: bool) -> None:
    verdict = judge(message(retry, retried), Outcome(End.FAILED, error=ValueError()), result_ttl=1, is_failure=counts)
    assert (verdict.action is Action.ARCHIVE) == (retried >= retry)
    lost = judge_lost_lease(message(retry, retried))
    assert (lost.action is Action.ARCHIVE) == (retried >= retry)
    assert verdict.action is Action.ARCHIVE or verdict.is_failure == counts


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_task_that_crashed_as_often_as_allowed_is_archived_and_0_allows_any_number(crashes: int, most: int) -> None:
    is_over = most > 0 and crashes >= most
    lost = judge_lost_lease(message(100), crashes=crashes, max_crashes=most)
    died = judge(
        message(100),
        Outcome(End.FAILED, error=ValueError(), crashes=crashes),
        result_ttl=1,
        is_failure=True,
        max_crashes=most,
    )
    assert [lost.action is Action.ARCHIVE, died.action is Action.ARCHIVE] == [is_over, is_over]


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
def test_a_result_is_kept_as_long_as_its_sender_asked(retention: int, result_ttl: int, has_result: bool) -> None:
    outcome = Outcome(End.SUCCEEDED, result=b"1" if has_result else None)
    verdict = judge(message(retention=retention), outcome, result_ttl=result_ttl, is_failure=True)
    if has_result:
        assert (verdict.action, verdict.retention) == (Action.COMPLETE, retention or result_ttl)
    else:
        assert verdict.retention == retention


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert not wraps(first, SkipRetry)


def test_a_context_is_not_a_cause() -> None:
    error = ValueError()
    error.__context__ = SkipRetry()
    assert not wraps(error, SkipRetry)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(End.TIMED_OUT, error=ValueError("x")), "context deadline exceeded"),
        (Outcome(End.CANCELLED, error=ValueError("x")), "context canceled"),
        (Outcome(End.FAILED, error=ValueError("x")), "ValueError: x"),
        (Outcome(End.FAILED, error=ValueError()), "ValueError"),
        (Outcome(End.FAILED, error=KeyError("x")), "KeyError: 'x'"),
        (Outcome(End.FAILED, error=SkipRetry()), "skip retry for the task"),
        (Outcome(End.FAILED, error=RevokeTask()), "revoke task"),
        (Outcome(End.SUCCEEDED), ""),
    ],
)
def test_error_texts(outcome: Outcome, text: str) -> None:
    assert outcome.error_text == text


def test_what_happened_is_written_into_the_message() -> None:
    changed = write_failure(message(retried=1), "boom", 99.9, counts=True)
    assert (changed.retried, changed.error_msg, changed.last_failed_at) == (2, "boom", 99)
    assert write_failure(message(retried=1), "boom", 99.9, counts=False).retried == 1


@pytest.mark.parametrize(
    ("timeout", "deadline", "ends"),
    [(0, 0, 1900), (30, 0, 130), (0, 120, 120), (30, 120, 120), (5, 120, 105), (0, 50, 50)],
)
def test_an_attempt_ends_at_the_earlier_of_timeout_and_deadline(timeout: int, deadline: int, ends: float) -> None:
    assert deadline_of(message(timeout=timeout, deadline=deadline), 100.0) == ends
