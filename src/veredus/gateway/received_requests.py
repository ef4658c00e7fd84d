"""ReceivedRequests: the states of one connection's requests, so that copies and cancels get no contradictory answer."""

from __future__ import annotations

from enum import Enum

MOST = 4096
"""As many as the store has records of one session."""


class RequestState(Enum):
    UNDECIDED = "undecided"
    CANCELLED = "cancelled"
    """Cancelled before it was decided: the response to the cancel is its only answer."""
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class ReceivedRequests:
    """One per connection."""

    __slots__ = ("_copies", "_states")

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}
        self._copies: dict[int, int] = {}
        """How many copies came while the request was undecided."""

    def __len__(self) -> int:
        return len(self._states)

    def state(self, rid: int) -> RequestState | None:
        return self._states.get(rid)

    def begin(self, rid: int) -> None:
        """Note a request that came first, or again after it was rejected."""
        self._states.pop(rid, None)  # it becomes the newest
        self._states[rid] = RequestState.UNDECIDED
        if len(self._states) > MOST:
            self.drop(next(iter(self._states)))

    def note_copy(self, rid: int) -> None:
        self._copies[rid] = self._copies.get(rid, 0) + 1

    def take_copies(self, rid: int) -> int:
        """How many copies wait for an answer; they are answered now."""
        return self._copies.pop(rid, 0)

    def settle(self, rid: int) -> None:
        """Note that the request has a response or will have one, unless it was rejected."""
        self._copies.pop(rid, None)
        if self._states.get(rid) in (RequestState.UNDECIDED, RequestState.CANCELLED):
            self._states[rid] = RequestState.ACCEPTED

    def reject(self, rid: int) -> bool:
        """Returns False if the request was cancelled in the meantime, and must not be rejected."""
        if self._states.get(rid) is RequestState.CANCELLED:
            return False
        self._copies.pop(rid, None)
        self._states[rid] = RequestState.REJECTED
        return True

    def cancel(self, rid: int) -> bool:
        """Returns False if the request was rejected: there is nothing to cancel."""
        state = self._states.get(rid)
        if state is RequestState.UNDECIDED:
            self._states[rid] = RequestState.CANCELLED
        return state is not RequestState.REJECTED

    def drop(self, rid: int) -> None:
        self._copies.pop(rid, None)
        self._states.pop(rid, None)

    def forget(self, rid_floor: int) -> None:
        """Forget requests whose answers the client has seen. It does not use their numbers again."""
        states = self._states
        while states and (first := next(iter(states))) <= rid_floor:
            self.drop(first)
