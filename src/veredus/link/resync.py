"""After a reconnect: check that the log is still the same, and find the requests to send again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from veredus.model.frames import CloseCode, FrameError, OpenRequest, Request


def check_read(
    epoch: str,
    last_sent: int,
    last_ts: int,
    *,
    log_epoch: str,
    floor: int,
    policy_floor: int,
    top: int,
    last_ts_in_log: int,
    next_ts: int,
) -> tuple[int, int] | None:
    """Compare what a link has sent with the log. Returns the range that the policy dropped, if any.

    Raises FrameError(INSUFFICIENT_STATE) if the link was following another log: a failover lost its last entries, or
    entries are missing that no policy dropped. The client then resumes, and the attach decides what it lost. The times
    are those of the last entry sent, and of the log's entries with its number and the next one (0: unknown).
    """
    if log_epoch != epoch:
        raise _unknown(f"epoch {log_epoch!r}, not {epoch!r}")
    if top < last_sent:
        raise _unknown(f"the log ends at {top}, but {last_sent} was sent")
    if floor > last_sent:
        if floor > policy_floor:
            raise _unknown(f"{last_sent + 1} to {floor} are missing")
        return last_sent + 1, floor
    if last_ts and last_ts_in_log and last_ts != last_ts_in_log:
        raise _unknown(f"{last_sent} is now another message")
    if next_ts and next_ts <= last_ts:
        raise _unknown(f"{last_sent + 1} is older than its predecessor")
    return None


def _unknown(reason: str) -> FrameError:
    return FrameError(reason, CloseCode.INSUFFICIENT_STATE)


@dataclass(slots=True)
class _Open:
    request: Request
    is_sent: bool = False
    is_accepted: bool = False


class UnansweredRequests:
    """The client's unanswered requests, kept over connections."""

    __slots__ = ("_next", "_open")

    def __init__(self, next_rid: int = 1) -> None:
        self._next = next_rid
        self._open: dict[int, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, rid: int) -> bool:
        return rid in self._open

    def __getitem__(self, rid: int) -> Request:
        return self._open[rid].request

    @property
    def next_rid(self) -> int:
        return self._next

    @property
    def floor(self) -> int:
        """Every request up to this number has been answered."""
        for rid in self._open:  # in ascending order: numbers are given in turn
            return rid - 1
        return self._next - 1

    def new(
        self, action: str, body: bytes, *, deadline_ms: int, no_reply: bool, serial: bool, encoding: str
    ) -> Request:
        request = Request(self._next, action, body, deadline_ms, no_reply, serial, encoding)
        self._open[self._next] = _Open(request)
        self._next += 1
        return request

    def sent(self, rid: int) -> None:
        self._open[rid].is_sent = True

    def accepted(self, rid: int) -> bool:
        """The server has stored the request. That completes a request without reply. Returns False if not open."""
        one = self._open.get(rid)
        if one is None:
            return False
        one.is_accepted = True
        if one.request.no_reply:
            self.answered(rid)
        return True

    def answered(self, rid: int) -> bool:
        """Remove a request. Returns False if it was not open."""
        return self._open.pop(rid, None) is not None

    def rejected(self, rid: int) -> bool:
        """Treat a rejected request as never sent, so that it can be sent again. Returns False if it is not open."""
        one = self._open.get(rid)
        if one is None:
            return False
        one.is_sent = one.is_accepted = False
        return True

    def to_send(self, known: Iterable[OpenRequest] = ()) -> list[Request]:
        """The requests to send after a welcome: all unanswered ones, except those that the server has done, or knows
        and has accepted. A gateway may have recorded a request and died before enqueuing it."""
        states = dict(known)
        return [
            one.request
            for rid, one in self._open.items()
            if rid not in states or not (states[rid] == "done" or one.is_accepted)
        ]

    def abandon_sent(self) -> list[Request]:
        """Remove and return the sent requests of a lost session, because their outcome is unknown."""
        lost = [one.request for one in self._open.values() if one.is_sent]
        self._open = {rid: one for rid, one in self._open.items() if not one.is_sent}
        return lost
