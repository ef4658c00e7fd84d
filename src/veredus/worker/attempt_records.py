"""Makes the records of attempts that are stored with their tasks, and applies the app's `redact` to what is stored."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

from veredus.handlers.executors.processes import ProcessDied, ProcessNotReady
from veredus.model.attempts import GIVEN_BACK, KILLED, MOST_ERROR, MOST_TRACEBACK, AttemptInfo
from veredus.model.failure import class_of, cut, cut_traceback, place_of, text_of, traceback_of
from veredus.model.message import TaskMessage
from veredus.model.redaction import Redact, Sensitive, redacted, redacted_bytes
from veredus.model.verdict import CANCELED, End, Outcome
from veredus.wire import lease_owner
from veredus.wire.attempts import encode_attempt, encode_plain_attempt
from veredus.worker.attempt import Attempt
from veredus.worker.type_counts import UNKNOWN, TypeCounts

LOST = "the lease expired: the worker died, stood still or lost its connection"
FOREIGN = "the lease expired; no worker of Veredus held it"
_PLAIN = {End.CANCELLED: CANCELED, End.ABORTED: "the worker stopped before the handler had ended"}
"""What is no error of the handler: there is no class and no traceback."""


class AttemptRecords:
    """Of one worker."""

    def __init__(
        self,
        worker_id: str,
        *,
        redact: Redact | None = None,
        tracebacks: bool = True,
        counts: TypeCounts | None = None,
        why_lost: str = LOST,
    ) -> None:
        """`counts` gets what failed, for the statistics. `why_lost` is the error of attempts whose lease was lost."""
        host = socket.gethostname() or "unknown-host"
        self._worker = f"{host}:{os.getpid()}:{lease_owner.worker_part(worker_id)}"
        self._worker_json = json.dumps(self._worker)
        self._redact = redact
        self._tracebacks = tracebacks
        self._counts = counts or TypeCounts()
        self._why_lost = why_lost

    def of(self, attempt: Attempt, outcome: Outcome, now: float, *, is_failure: bool = False) -> bytes:
        """The record of an attempt that this worker ran, which ends now. A failure is counted as an error."""
        if outcome.error is None and not attempt.context.log_lines and not is_failure:
            number, name = attempt.message.retried + 1, _outcome_name(outcome)
            return encode_plain_attempt(number, name, self._worker_json, attempt.started_at, now)
        info = self._info(attempt, outcome, now)
        if is_failure:
            self._counts.note_error(attempt.queue, attempt.message.type, attempt.task_id, info)
        return encode_attempt(info)

    def _info(self, attempt: Attempt, outcome: Outcome, now: float) -> AttemptInfo:
        context, error = attempt.context, outcome.error
        info = AttemptInfo(
            attempt=attempt.message.retried + 1,
            outcome=_outcome_name(outcome),
            worker=self._worker,
            started_at=attempt.started_at,
            ended_at=now,
            log=tuple((at, self.stored("log", line, attempt.message)) for at, line in context.log_lines),
        )
        if error is None:
            return info
        is_plain = outcome.end in _PLAIN
        text = _PLAIN[outcome.end] if is_plain else text_of(error, MOST_ERROR)
        return replace(
            info,
            error_class="" if is_plain else class_of(error),
            error=cut(self.stored("error", text, attempt.message), MOST_ERROR),
            place="" if is_plain else place_of(error),
            traceback="" if is_plain else self._traceback(error, attempt.message),
        )

    def unreadable(self, message: TaskMessage, reason: str, now: float) -> bytes:
        """The record of a task whose message cannot be read: no handler began."""
        text = cut(self.stored("error", reason, message), MOST_ERROR)
        info = AttemptInfo(
            attempt=1, outcome=End.UNREADABLE.value, worker=self._worker, started_at=now, ended_at=now, error=text
        )
        self._count(message, info)
        return encode_attempt(info)

    def lost(self, message: TaskMessage, owner: str, reason: str, now: float) -> bytes:
        """The record of an attempt whose lease expired. `owner` held it; empty if no worker of Veredus did."""
        return encode_attempt(self._lost(message, owner, reason, now))

    def count_lost(self, message: TaskMessage, owner: str, now: float, *, failed: bool) -> None:
        """Such an attempt, for the statistics."""
        if failed:
            self._count(message, self._lost(message, owner, "", now))
        else:
            self._counts.note(message.queue, message.type, now, UNKNOWN, UNKNOWN)

    def _count(self, message: TaskMessage, info: AttemptInfo) -> None:
        self._counts.note_failed(message.queue, message.type, info.ended_at, UNKNOWN, UNKNOWN)
        self._counts.note_error(message.queue, message.type, message.id, info)

    def stored(self, kind: str, text: str, message: TaskMessage) -> str:
        """A text of a task after the app's hook."""
        if self._redact is None or not text:
            return text
        return redacted(self._redact, text, Sensitive(kind, message.type, message.queue, message.id))

    def shown_payload(self, message: TaskMessage) -> bytes:
        """A payload after the app's hook, for the list of what a worker runs."""
        if self._redact is None:
            return message.payload
        what = Sensitive("payload", message.type, message.queue, message.id)
        return redacted_bytes(self._redact, message.payload, what)

    def _lost(self, message: TaskMessage, owner: str, reason: str, now: float) -> AttemptInfo:
        return AttemptInfo(
            attempt=message.retried + 1,
            outcome=End.LEASE_LOST.value,
            worker=owner.partition(":")[0],
            started_at=lease_owner.taken_at(owner),
            ended_at=now,
            error=reason or (self._why_lost if owner else FOREIGN),
        )

    def _traceback(self, error: BaseException, message: TaskMessage) -> str:
        if not self._tracebacks:
            return ""
        return cut_traceback(self.stored("traceback", traceback_of(error), message), MOST_TRACEBACK)


def _outcome_name(outcome: Outcome) -> str:
    if isinstance(outcome.error, ProcessDied) and not isinstance(outcome.error, ProcessNotReady):
        return KILLED
    return GIVEN_BACK if outcome.end is End.ABORTED else outcome.end.value
