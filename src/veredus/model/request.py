"""A client's request as a task: its headers, the declared actions, and the error code for each outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from veredus.errors import ConfigError, Refused
from veredus.model.frames import ErrorCode
from veredus.model.options import seconds
from veredus.model.verdict import Action as Act
from veredus.model.verdict import End, Outcome, Verdict, wraps

SESSION = "veredus-session"
REQUEST = "veredus-request"
USER = "veredus-user"
DEADLINE = "veredus-deadline"

RETENTION = 300.0
"""Seconds for which a request's task is kept after its end, so that a repeated request finds it."""
WHERE = ("worker", "gateway")


class Origin(NamedTuple):
    """The session and the request that a task belongs to."""

    session: str
    rid: int
    user: str
    deadline_ms: int

    def headers(self) -> dict[str, str]:
        return {
            SESSION: self.session,
            REQUEST: str(self.rid),
            USER: self.user,
            DEADLINE: str(self.deadline_ms),
        }


def origin_of(headers: Mapping[str, str]) -> Origin | None:
    """None for a task that is not a request, also if its headers are invalid."""
    session = headers.get(SESSION)
    if session is None:
        return None
    rid, deadline = headers.get(REQUEST, ""), headers.get(DEADLINE, "0")
    if not session or not _is_number(rid) or not _is_number(deadline):
        return None
    return Origin(session, int(rid), headers.get(USER, ""), int(deadline))


def _is_number(text: str) -> bool:
    """More digits than these are no number of a request, and Python refuses to read very many."""
    return text.isdecimal() and len(text) < 20


def task_id_of(session: str, rid: int) -> str:
    """One task per request: a request that is sent twice finds its task and does not run twice."""
    return f"{session}.{rid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRule:
    """One action that clients may call."""

    name: str
    queue: str
    deadline: float
    """The most seconds that a request may take."""
    serial: bool = False
    """Whether a session's requests for this action run one after the other."""
    where: str = "worker"

    @classmethod
    def make(cls, name: str, queue: str, deadline: object, serial: bool, where: str) -> ActionRule:
        limit = seconds("deadline", deadline)
        if not 0 < limit <= 86400:
            raise ConfigError("deadline", deadline, "seconds above 0, at most a day")
        if where not in WHERE:
            raise ConfigError("where", where, "'worker' or 'gateway'", known=WHERE)
        if serial and where == "gateway":
            raise ConfigError("serial", serial, "False for an action that runs in the gateway")
        return cls(name=name, queue=queue, deadline=limit, serial=serial, where=where)


_ENDS = {
    End.TIMED_OUT: (ErrorCode.DEADLINE, "the handler ran over its time"),
    End.CANCELLED: (ErrorCode.CANCELLED, "cancelled"),
}


def answers(verdict: Verdict) -> bool:
    """Whether this verdict ends the request."""
    return verdict.action in (Act.DONE, Act.COMPLETE, Act.ARCHIVE)


def error_for(outcome: Outcome) -> tuple[int, str]:
    """The error code and text for the client, (0, "") for success. The text of an unexpected exception stays on the
    server: it was not written for clients."""
    if outcome.end is End.SUCCEEDED:
        return 0, ""
    if outcome.end is End.UNREADABLE:
        return ErrorCode.BAD_REQUEST, f"the body does not fit the action: {outcome.error}"
    known = _ENDS.get(outcome.end)
    if known is not None:
        return known
    error = outcome.error
    while error is not None and not isinstance(error, Refused):
        error = error.__cause__
    if isinstance(error, Refused) and wraps(outcome.error, Refused):
        return error.code, error.text
    return ErrorCode.HANDLER_FAILED, f"the handler failed ({type(outcome.error).__name__})"
