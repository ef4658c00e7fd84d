"""The results of the scripts for sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from veredus.model.delivery import NO_CURSOR, Cursor
from veredus.store.inspect.inspect_part import text
from veredus.wire.log_entries import LogEntry
from veredus.wire.session_fields import ATTACHED
from veredus.wire.times import count_of


class SessionId(NamedTuple):
    """A row of a script."""

    sid: str


class SessionConnection(NamedTuple):
    """One connection of a session: a row of a script."""

    sid: str
    generation: int


class Ending(NamedTuple):
    """A session to end, and why: a row of a script."""

    sid: str
    reason: str


class Membership(NamedTuple):
    """A row of a script."""

    sid: str
    group: str


class GroupName(NamedTuple):
    """A row of a script."""

    group: str


class NodeName(NamedTuple):
    """A row of a script."""

    node: str


class Partition(NamedTuple):
    """A row of a script."""

    tag: str


class Created(NamedTuple):
    """`sid` is empty if the user has too many sessions and the oldest must stay."""

    sid: str
    epoch: str
    generation: int
    top: int
    """Above 0 if messages waited in the user's mailbox."""
    replaced: tuple[str, ...] = ()
    """Older sessions of the user that were ended."""


@dataclass(frozen=True, slots=True)
class Attached:
    """`result` is resumed, reset, unknown or forbidden; `reason` is why it was not resumed."""

    result: str
    reason: str = ""
    epoch: str = ""
    base: Cursor = NO_CURSOR
    """Where the client continues: its own cursor, the end of `gap` or, after a reset, the floor in the new epoch."""
    top: int = 0
    generation: int = 0
    gap: tuple[int, int] | None = None
    """The range that the quota's policy dropped."""
    open_requests: list[tuple[int, str]] = field(default_factory=list)
    """(rid, open or done)"""
    entries: list[LogEntry] = field(default_factory=list)
    """The entries after `base` that fit into the first flush."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The state of one session."""

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
    """Bytes of unacknowledged messages."""
    open_requests: int
    held: int
    """Notifications bound to responses that do not exist yet."""
    created_ms: int
    expires_ms: int
    """0 while attached."""
    groups: tuple[str, ...]

    @property
    def pending(self) -> int:
        return self.top - self.floor


@dataclass(slots=True)
class Swept:
    """The result of one sweep."""

    expired: list[str] = field(default_factory=list)
    """Sessions that were not resumed in time, deleted with all their keys."""
    orphans: list[str] = field(default_factory=list)
    """Sessions of dead nodes, now detached."""
    due: list[tuple[str, int]] = field(default_factory=list)
    """(sid, rid) of requests whose deadline has passed, for `Outbox.expire`."""
    flushed: int = 0
    """Notifications bound to a request that never arrived, now sent as late."""
    dropped: int = 0
    """The same, but dropped: they must not be late, or the log was full."""
    nodes: frozenset[str] = frozenset()
    """All known nodes."""


def session_row(sid: str, reply: Sequence[Any]) -> SessionRow:
    *fields, groups = reply
    user, state, node, connection, epoch = (text(one or b"") for one in fields[:5])
    numbers = [count_of(one) for one in fields[5:]]
    generation, top, floor, policy_floor, bytes_top, bytes_floor, opened, held, created, expires = numbers
    return SessionRow(
        sid,
        user,
        "attached" if state == ATTACHED else "detached",
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
