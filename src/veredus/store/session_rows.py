"""What the store tells about sessions: made, attached, swept, and how they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from veredus.model.delivery import NO_CURSOR, Cursor
from veredus.store.places import text
from veredus.wire.entries import Entry
from veredus.wire.times import count_of


class Created(NamedTuple):
    """`sid` is empty when the user has too many sessions already and the oldest shall stay."""

    sid: str
    epoch: str
    generation: int
    top: int
    """Above 0 if something waited for the user in the mailbox."""
    replaced: tuple[str, ...] = ()
    """Older sessions of the user that had to give way."""


@dataclass(frozen=True, slots=True)
class Attached:
    """`result` is resumed, reset, unknown or forbidden; `reason` says why it is not resumed."""

    result: str
    reason: str = ""
    epoch: str = ""
    base: Cursor = NO_CURSOR
    """From here the client goes on: its own cursor, the end of `gap`, or, after a reset, the floor in the new epoch."""
    top: int = 0
    generation: int = 0
    gap: tuple[int, int] | None = None
    """What the quota's policy dropped: the client will never get it."""
    open_requests: list[tuple[int, str]] = field(default_factory=list)
    """(rid, open or done)"""
    entries: list[Entry] = field(default_factory=list)
    """What comes right after `base`, as far as it fits into the first flush."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """How one session stands."""

    sid: str
    user: str
    state: str
    """attached or detached"""
    node: str
    connection: str
    epoch: str
    generation: int
    top: int
    floor: int
    policy_floor: int
    bytes: int
    """Of what is not acknowledged."""
    open_requests: int
    held: int
    """Notifies bound to responses that were not given yet."""
    created_ms: int
    expires_ms: int
    """0 while it is attached."""
    groups: tuple[str, ...]

    @property
    def pending(self) -> int:
        return self.top - self.floor


@dataclass(slots=True)
class Swept:
    """What one sweep found and did."""

    expired: list[str] = field(default_factory=list)
    """Sessions that were not resumed in time: gone with all their keys."""
    orphans: list[str] = field(default_factory=list)
    """Sessions of dead nodes: detached now."""
    due: list[tuple[str, int]] = field(default_factory=list)
    """(sid, rid) of requests whose deadline has passed: give them to `Outbox.expire`."""
    flushed: int = 0
    """Notifies that were bound to a request which never came, sent now as late ones."""
    dropped: int = 0
    """The same, of those that would rather not be late, or had no room."""
    nodes: frozenset[str] = frozenset()
    """All nodes that the store knows."""


def session_row(sid: str, reply: Sequence[Any]) -> SessionRow:
    fields, groups = reply
    user, state, node, connection, epoch = (text(one or b"") for one in fields[:5])
    numbers = [count_of(one) for one in fields[5:]]
    generation, top, floor, policy_floor, bytes_top, bytes_floor, opened, held, created, expires = numbers
    return SessionRow(
        sid,
        user,
        "attached" if state == "a" else "detached",
        node,
        connection,
        epoch,
        generation,
        top,
        floor,
        policy_floor,
        bytes_top - bytes_floor,
        opened,
        held,
        created,
        expires,
        tuple(sorted(text(group) for group in groups)),
    )
