"""The law of delivery: cursors, statuses, quotas and what a notify carries, as values and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from veredus.errors import ConfigError

MESSAGE_TIMEOUT = 30.0
"""Seconds after which half are over before an unacknowledged message is resent, and for which a bind waits for its
request."""
MAX_RETRIES = 3
CLEANUP_INTERVAL = 10.0
MAX_QUEUE_SIZE = 1000
WINDOW_MESSAGES = 256
WINDOW_BYTES = 256 * 1024
SECRET_GRACE = 30.0
"""Seconds for which at least the secret before the last one still opens a session; it does so for the session's TTL,
since the welcome with the new one may be lost."""
MAX_OPEN_REQUESTS = 32
MAX_REQUEST_RECORDS = 4096
"""Requests of one session whose answers the client has not yet said to have seen."""
MAX_BINDS_PER_REQUEST = 64
MAX_BINDS_PER_SESSION = 256
HARD_CAP_EXTRA = 64
"""Entries beyond the quota that a response and what is bound to it may still take."""
MAX_SESSIONS_PER_USER = 5
MAX_GROUPS_PER_SESSION = 128
DEDUPE_SECONDS = 300.0
DISCONNECTED = "disconnected"
"""How the reason begins with which `disconnect` ends a session; `: ` and the caller's own reason follow, if given."""
REVOKED = "revoked"
MAX_END_REASON = 100
REVOKED_FOR = 366 * 86_400.0
"""Seconds for which a revocation is remembered; longer than any token should live."""
MAX_DEDUPE_KEY = 128
MAX_BODY = 1024 * 1024
NODE_TIMEOUT = 15.0
"""Seconds without a heartbeat after which a gateway node counts as dead."""
POLICIES = ("reject", "drop_oldest", "close")
LATE = ("send", "reject")
ON_FAIL = ("send", "drop")


class Cursor(NamedTuple):
    """How far a client has come: the last message it has handed to its application. `ts` is that message's own time, by
    which a log that lost its tail is told from the one the client saw."""

    epoch: str
    seq: int
    ts: int


NO_CURSOR = Cursor("", 0, 0)


class SyncHint(IntEnum):
    """When a notify shall arrive, seen from the response to a request."""

    IMMEDIATE = 0
    BEFORE_RESPONSE = 1
    AFTER_RESPONSE = 2


class Status(StrEnum):
    """What became of one push."""

    QUEUED = "queued"
    """It has its number and is in the log."""
    HELD = "held"
    """Bound to a response that has not been given yet."""
    LATE = "late"
    """Bound before a response that was there already: it is in the log now, marked as late."""
    DUPLICATE = "duplicate"
    """Its dedupe key was used before: nothing was added, `seq` is that of the first one."""
    FULL = "full"
    """The quota, or the limit of bound notifies, leaves no room: nothing was added."""
    GONE = "gone"
    """No such session, or it has ended."""
    TOO_LATE = "too_late"
    """Bound before a response that was there already, with `late="reject"`: nothing was added."""
    WAITING = "waiting"
    """The user has no session: it waits in the mailbox."""

    @property
    def ok(self) -> bool:
        """True where the message is, or will be, in a log."""
        return self in (Status.QUEUED, Status.HELD, Status.LATE, Status.DUPLICATE, Status.WAITING)


class PushResult(NamedTuple):
    """What became of one push to one session."""

    status: Status
    seq: int = 0
    session: str = ""

    @property
    def ok(self) -> bool:
        """Whether the message will reach the client, or wait for it."""
        return self.status.ok


class Spread(NamedTuple):
    """What became of a push to a group or to everyone: how many sessions came to which status."""

    counts: Mapping[Status, int]

    @property
    def sessions(self) -> int:
        """To how many sessions it went."""
        return sum(self.counts.values())

    @property
    def queued(self) -> int:
        """How many of them have it in their log."""
        return self.counts.get(Status.QUEUED, 0)

    @property
    def ok(self) -> bool:
        """Whether none of them refused it."""
        return all(status.ok for status in self.counts)


class Verdict(StrEnum):
    """What an attach comes to."""

    RESUMED = "resumed"
    RESET = "reset"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    REVOKED = "revoked"
    """The token was issued before an instant that was given to `revoke`."""
    CLOSED = "closed"
    """The session was ended by `disconnect`."""


class Reason(StrEnum):
    """Why a session could not be resumed as the client left it."""

    NONE = ""
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    EPOCH = "epoch"
    """The log was begun anew since."""
    AHEAD = "ahead"
    """The client has seen more than the log has."""
    TRUNCATED = "truncated"
    """What the client lacks is gone."""
    FORK = "fork"
    """Under this number the log has another message than the one the client saw."""
    USER = "user"
    SECRET = "secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much of what a client has not acknowledged is kept for it, and what happens to a push beyond that."""

    entries: int = 1000
    bytes: int = 1024 * 1024
    policy: str = "reject"

    def __post_init__(self) -> None:
        if not isinstance(self.entries, int) or self.entries < 1:
            raise ConfigError("quota.entries", self.entries, "a number of messages of at least 1")
        if not isinstance(self.bytes, int) or self.bytes < 1024:
            raise ConfigError("quota.bytes", self.bytes, "a number of bytes of at least 1024")
        check_policy(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyItem:
    """A notify with all that reaches the client, by these names on every path."""

    data: bytes = b""
    type: str = ""
    title: str = ""
    content: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    sync_hint: SyncHint = SyncHint.IMMEDIATE
    bind_client_seq_id: int | None = None
    create_time: int = 0
    """Unix milliseconds; 0 for the time of the push."""
    encoding: str = "json"
    """What `data` is: json or raw."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What a session's log looks like: enough to judge a cursor or a push."""

    epoch: str
    top: int
    floor: int
    floor_ts: int
    policy_floor: int = 0
    bytes: int = 0


def judge_cursor(log: LogState, cursor: Cursor, ts_at: int | None) -> tuple[Verdict, Reason, tuple[int, int] | None]:
    """Whether a client can go on at its cursor. `ts_at` is the ts of the entry at cursor.seq, None if the log does not
    have it. The third part is the range that the quota's policy dropped and the client therefore never gets.
    `lua/session/attach.lua` decides by the same rules."""
    if cursor.epoch and cursor.epoch != log.epoch:
        return Verdict.RESET, Reason.EPOCH, None
    if cursor.seq > log.top:
        return Verdict.RESET, Reason.AHEAD, None
    if cursor.seq < log.floor:
        if log.floor <= log.policy_floor:
            return Verdict.RESUMED, Reason.NONE, (cursor.seq + 1, log.floor)
        return Verdict.RESET, Reason.TRUNCATED, None
    if cursor.seq == log.floor:
        ts_at = log.floor_ts
    if cursor.seq > 0 and ts_at != cursor.ts:
        return Verdict.RESET, Reason.FORK, None
    return Verdict.RESUMED, Reason.NONE, None


def has_room(log: LogState, quota: Quota, size: int) -> bool:
    """Whether one more entry of so many bytes fits the quota; the only one always does."""
    return log.top == log.floor or (log.top - log.floor < quota.entries and log.bytes + size <= quota.bytes)


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise ConfigError("policy", policy, f"one of {', '.join(POLICIES)}", known=POLICIES)
    return policy


def check_dedupe_key(key: str) -> str:
    if not isinstance(key, str) or len(key) > MAX_DEDUPE_KEY:
        raise ConfigError("dedupe_key", key, f"a text of at most {MAX_DEDUPE_KEY} characters")
    return key
