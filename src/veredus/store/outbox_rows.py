"""The rows that go into and come out of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from veredus.errors import ConfigError
from veredus.model.delivery import DEDUPE_SECONDS, PushResult, Status, SyncHint
from veredus.wire.entries import Entry

DEDUPE_MS = int(DEDUPE_SECONDS * 1000)
_POLICIES = {"": "", "reject": "r", "drop_oldest": "d", "close": "c"}


class Append(NamedTuple):
    """One message on its way into the log of one session. `expiry`: Unix ms, or `+250` for ms from now, empty for none.
    `policy`: reject, drop_oldest or close; empty for the session's own. `notify`: the request whose handler tells
    this, and its number among what that handler tells: the same one is added once."""

    sid: str
    tail: bytes
    expiry: str = ""
    dedupe_key: str = ""
    policy: str = ""
    notify: tuple[int, int] | tuple[str, str] = ("", "")


class Post(NamedTuple):
    """One message on its way to all sessions of a user. `wait_ms` above 0: if there is none, it waits in the
    mailbox."""

    user: str
    tail: bytes
    expiry: str = ""
    dedupe_key: str = ""
    policy: str = ""
    wait_ms: int = 0


class Bind(NamedTuple):
    """One message bound to the response to a request of a session."""

    sid: str
    rid: int
    hint: SyncHint
    tail: bytes
    expiry: str = ""
    dedupe_key: str = ""
    late: str = "send"
    on_fail: str = "send"
    policy: str = ""


class Accept(NamedTuple):
    sid: str
    rid: int
    deadline_ms: int
    """Unix ms."""
    generation: int
    arrival: int = 0


class Responded(NamedTuple):
    status: str
    """sent, duplicate or gone."""
    seq: int = 0
    """Of the response; of the first one for a duplicate."""
    first: int = 0
    last: int = 0
    """The run that was appended: befores, response, afters."""
    dropped: int = 0
    """Bound notifies that were dropped: `on_fail="drop"`, or no room even beyond the quota."""


class AckRow(NamedTuple):
    sid: str
    seq: int
    rid_floor: int = 0
    ts: int = 0


class ReadRow(NamedTuple):
    sid: str
    from_seq: int
    most: int
    max_bytes: int = 256 * 1024


class Excerpt(NamedTuple):
    """What the log of a session has, from where it was asked for; None in its place means that the session is gone."""

    epoch: str
    generation: int
    floor: int
    floor_ts: int
    policy_floor: int
    top: int
    entries: list[Entry]
    node: str = ""
    """To which the session is attached; empty if it is not, as after that node was taken for dead."""


def push_result(reply: Sequence[Any], sid: str) -> PushResult:
    return PushResult(Status(reply[0].decode()), int(reply[1]), sid)


def policy_code(policy: str) -> str:
    """As scripts know it."""
    try:
        return _POLICIES[policy]
    except KeyError:
        known = [name for name in _POLICIES if name]
        raise ConfigError("policy", policy, f"one of {', '.join(known)}", known=known) from None
