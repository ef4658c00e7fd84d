"""Logs failed attempts: one line each, of bounded length whatever the handler raised."""

from __future__ import annotations

import asyncio
import logging

from veredus.model.failure import is_short, one_line, traceback_of
from veredus.model.message import TaskMessage
from veredus.model.verdict import Action, End, Outcome, Verdict

logger = logging.getLogger("veredus.worker")

_AFTER_CANCEL = {Action.ARCHIVE: "archived", Action.DONE: "deleted", Action.RETRY: "tried again"}


def log_ending(message: TaskMessage, attempt: int, outcome: Outcome, verdict: Verdict, *, quiet: bool) -> None:
    """With `quiet`, the app's on_error has handled the failure: only the last failure of a task is a warning."""
    error = outcome.error
    if error is None or verdict.action in (Action.REQUEUE, Action.NOTHING):
        return
    level, what = logging.DEBUG if quiet else logging.WARNING, "failed in"
    if outcome.end is End.CANCELLED:
        level, what = logging.INFO, f"cancelled and {_AFTER_CANCEL[verdict.action]} after"
    elif verdict.action is Action.DONE:
        level, what = logging.INFO, "revoked in"
    elif verdict.action is Action.ARCHIVE:
        level, what = logging.WARNING, "failed and archived after"
    elif not verdict.is_failure:
        level, what = min(level, logging.INFO), "deferred (not a failure) in"
    if not logger.isEnabledFor(level):
        return
    where = f"task {message.id} ({message.type}) of queue {message.queue}"
    line = f"{where} {what} attempt {attempt} of {message.retry + 1}"
    if not isinstance(error, asyncio.CancelledError):
        line += f": {one_line(error)}"
    is_last = what.startswith("failed and")
    # What does not fit was read by no handler: its traceback shows nothing, and clients could fill the log with it.
    if (is_last and outcome.end is not End.UNREADABLE) or logger.isEnabledFor(logging.DEBUG):
        log_with_traceback(logger, level, line, error)
    else:
        logger.log(level, "%s", line)


def log_with_traceback(logger: logging.Logger, level: int, line: str, error: BaseException) -> None:
    """Log the exception itself, so that handlers can format it; a bounded text instead if it is very large or comes
    from another process."""
    if is_short(error):
        logger.log(level, "%s", line, exc_info=error)
    else:
        logger.log(level, "%s\n%s", line, traceback_of(error))


def log_hook_failure(what: str, error: BaseException, then: str = "") -> None:
    """A hook of the app raised an error that is not passed on."""
    logger.error("%s raised %s%s", what, one_line(error), then)
