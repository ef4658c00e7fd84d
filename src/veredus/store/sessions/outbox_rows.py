"""The rows and results of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from veredus.errors import ConfigError
from veredus.model.delivery import DEDUPE_SECONDS, PushResult, PushStatus, SyncHint
from veredus.wire.log_entries import LogEntry

DEDUPE_MS = int(DEDUPE_SECONDS * 1000)
_POLICIES = {"": "", "reject": "r", "drop_oldest": "d", "close": "c"}


class Append(NamedTuple):
    """One message for the log of one session. `expiry`: Unix ms, `+250` for ms from now, or empty for none. `policy`:
    reject, drop_oldest or close; empty for the session's policy. `notify`: the request whose handler sends this, and
    the number of the notification within that request; each is added once."""

    sid: str
    tail: bytes
    expiry: str = ""
    dedupe_key: str = ""
    policy: str = ""
    notify: tuple[int, int] | tuple[str, str] = ("", "")


class Post(NamedTuple):
    """One message for all sessions of a user. With `wait_ms` above 0 it waits in the mailbox if there is none."""

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


class AppendRow(NamedTuple):
    """An `Append` as the script takes it."""

    sid: str
    expiry: str
    dedupe_key: str
    rid: int | str
    number: int | str
    policy: str
    tail: bytes


class PostRow(NamedTuple):
    """A `Post` as the script takes it."""

    tag: str
    user: str
    expiry: str
    dedupe_name: str
    policy: str
    wait_ms: int
    tail: bytes


class BindRow(NamedTuple):
    """A `Bind` as the script takes it."""

    sid: str
    rid: int
    is_before: bool
    expiry: str
    dedupe_key: str
    late: str
    on_fail: str
    policy: str
    tail: bytes


class TailRow(NamedTuple):
    """A message that goes with a response."""

    tail: bytes


class AcceptRow(NamedTuple):
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
    """The number of the response; for a duplicate, of the first response."""
    first: int = 0
    last: int = 0
    """The numbers of the run that was appended: befores, response, afters."""
    dropped: int = 0
    """Bound notifications that were dropped, by `on_fail="drop"` or because the log was full."""


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
    """A part of a session's log. `read` returns None in its place if the session is gone."""

    epoch: str
    generation: int
    floor: int
    floor_ts: int
    policy_floor: int
    top: int
    entries: list[LogEntry]
    node: str = ""
    """The node to which the session is attached; empty if detached, also after its node was taken for dead."""


def push_result(reply: Sequence[Any], sid: str) -> PushResult:
    return PushResult(PushStatus(reply[0].decode()), int(reply[1]), sid)


def policy_code(policy: str) -> str:
    """The policy's code in scripts."""
    try:
        return _POLICIES[policy]
    except KeyError:
        known = [name for name in _POLICIES if name]
        raise ConfigError("policy", policy, f"one of {', '.join(known)}", known=known) from None
