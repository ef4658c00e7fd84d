"""What the log says of an attempt that did not succeed, and how loud."""

from __future__ import annotations

import logging

import pytest

from veredus.errors import PayloadError
from veredus.handlers.failure_log import log_ending
from veredus.model.message import TaskMessage
from veredus.model.verdict import Action, End, Outcome, Verdict

MESSAGE = TaskMessage(type="t", id="1", queue="q", retry=3)


@pytest.mark.parametrize(
    ("verdict", "quiet", "level"),
    [
        (Verdict(Action.RETRY), False, "WARNING"),
        (Verdict(Action.RETRY), True, "DEBUG"),
        (Verdict(Action.RETRY, is_failure=False), False, "INFO"),
        (Verdict(Action.RETRY, is_failure=False), True, "DEBUG"),
        (Verdict(Action.ARCHIVE), False, "WARNING"),
        (Verdict(Action.ARCHIVE), True, "WARNING"),
        (Verdict(Action.DONE), False, "INFO"),
        (Verdict(Action.REQUEUE), False, None),
        (Verdict(Action.NOTHING), False, None),
    ],
    ids=lambda value: f"{value.action.value}-{value.is_failure}" if isinstance(value, Verdict) else str(value),
)
def test_how_an_attempt_ended_says_how_loud_it_is(
    verdict: Verdict, quiet: bool, level: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "veredus.worker")
    log_ending(MESSAGE, 1, Outcome(End.FAILED, error=ValueError("no")), verdict, quiet=quiet)
    assert [record.levelname for record in caplog.records] == ([] if level is None else [level])


def test_what_succeeded_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "veredus.worker")
    log_ending(MESSAGE, 1, Outcome(End.SUCCEEDED), Verdict(Action.DONE), quiet=False)
    assert caplog.records == []


@pytest.mark.parametrize(("end", "has_traceback"), [(End.UNREADABLE, False), (End.FAILED, True)])
def test_a_payload_that_does_not_fit_takes_one_line(
    end: End, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients of the gateway choose the bodies of their requests: they must not be able to fill the log."""
    caplog.set_level(logging.INFO, "veredus.worker")
    log_ending(MESSAGE, 1, Outcome(end, error=PayloadError("does not fit")), Verdict(Action.ARCHIVE), quiet=False)
    (record,) = caplog.records
    assert (record.exc_info is not None) == has_traceback
    assert "does not fit" in record.getMessage()
