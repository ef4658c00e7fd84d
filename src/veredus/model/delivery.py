"""The rules of delivery: cursors, statuses, quotas and the fields of a notify, as values and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from veredus.errors import ConfigError
from veredus.model.names import is_utf8

MESSAGE_TIMEOUT = 30.0
"""Seconds for which a bound notify waits for its request. A message without an acknowledgement is sent again after
half of this time."""
MAX_RETRIES = 3
CLEANUP_INTERVAL = 10.0
MAX_QUEUE_SIZE = 1000
WINDOW_MESSAGES = 256
WINDOW_BYTES = 256 * 1024
SECRET_GRACE = 30.0
"""Seconds for which at least the secret before the current one still opens a session. The session's TTL applies if
it is longer, because the welcome with the new secret may be lost."""
MAX_OPEN_REQUESTS = 32
MAX_REQUEST_RECORDS = 4096
"""Requests of one session whose responses the client has not confirmed yet."""
MAX_BINDS_PER_REQUEST = 64
MAX_BINDS_PER_SESSION = 256
HARD_CAP_EXTRA = 64
"""Entries beyond the quota that a response and its bound notifies may use."""
MAX_SESSIONS_PER_USER = 5
MAX_GROUPS_PER_SESSION = 128
DEDUPE_SECONDS = 300.0
DISCONNECTED = "disconnected"
"""The reason of a session that `disconnect` ended starts with this word; `: ` and the caller's reason follow, if
given."""
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
    """A client's position: the last message that its application has handled. `ts` is the time of that message; it
    detects a log that has lost its end since."""

    epoch: str
    seq: int
    ts: int


NO_CURSOR = Cursor("", 0, 0)


class SyncHint(IntEnum):
    """When a notify is delivered, relative to the response to a request."""

    IMMEDIATE = 0
    BEFORE_RESPONSE = 1
    AFTER_RESPONSE = 2


class PushStatus(StrEnum):
    """The result of one push."""

    QUEUED = "queued"
    """It has its number and is in the log."""
    HELD = "held"
    """Bound to a response that does not exist yet."""
    LATE = "late"
    """Bound before a response that was already there: it is in the log now, marked as late."""
    DUPLICATE = "duplicate"
    """Its dedupe key was used before: nothing was added; `seq` is that of the first message."""
    FULL = "full"
    """The quota, or the limit of bound notifies, is reached: nothing was added."""
    GONE = "gone"
    """The session does not exist, or has ended."""
    TOO_LATE = "too_late"
    """Bound before a response that was already there, with `late="reject"`: nothing was added."""
    WAITING = "waiting"
    """The user has no session: the message waits in the mailbox."""

    @property
    def ok(self) -> bool:
        """Whether the message is, or will be, in a log."""
        return self in (PushStatus.QUEUED, PushStatus.HELD, PushStatus.LATE, PushStatus.DUPLICATE, PushStatus.WAITING)


class PushResult(NamedTuple):
    """The result of one push to one session."""

    status: PushStatus
    seq: int = 0
    session: str = ""

    @property
    def ok(self) -> bool:
        """Whether the message will reach the client or wait for it."""
        return self.status.ok


class Spread(NamedTuple):
    """The result of a push to a group or to everyone: the number of sessions per status."""

    counts: Mapping[PushStatus, int]

    @property
    def sessions(self) -> int:
        """The number of sessions that the push was for."""
        return sum(self.counts.values())

    @property
    def queued(self) -> int:
        """The number of sessions whose log has it now."""
        return self.counts.get(PushStatus.QUEUED, 0)

    @property
    def ok(self) -> bool:
        """Whether no session refused it."""
        return all(status.ok for status in self.counts)


class AttachResult(StrEnum):
    """The result of an attach."""

    RESUMED = "resumed"
    RESET = "reset"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    REVOKED = "revoked"
    """The token was issued before a revocation of the user's tokens."""
    CLOSED = "closed"
    """The session was ended by `disconnect`."""


class ResetReason(StrEnum):
    """Why a session could not be resumed at the client's cursor."""

    NONE = ""
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    EPOCH = "epoch"
    """The log was started anew since."""
    AHEAD = "ahead"
    """The client's cursor is beyond the end of the log."""
    TRUNCATED = "truncated"
    """Messages that the client has not seen are gone."""
    FORK = "fork"
    """The log has another message under this number."""
    USER = "user"
    SECRET = "secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How many unacknowledged messages are kept for a client, and what happens to a push beyond that."""

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
    """A notify with everything that reaches the client. The names are the same on every path."""

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
    """The encoding of `data`: json or raw."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a session's log, as far as needed to check a cursor or a push."""

    epoch: str
    top: int
    floor: int
    floor_ts: int
    policy_floor: int = 0
    bytes: int = 0


def judge_cursor(
    log: LogState, cursor: Cursor, ts_at: int | None
) -> tuple[AttachResult, ResetReason, tuple[int, int] | None]:
    """Whether a client can resume at its cursor. `ts_at` is the time of the entry at cursor.seq, None if the log
    does not have it. The third part of the result is the range that the quota's policy dropped and the client will
    not get. `lua/session/attach.lua` decides by the same rules."""
    if cursor.epoch and cursor.epoch != log.epoch:
        return AttachResult.RESET, ResetReason.EPOCH, None
    if cursor.seq > log.top:
        return AttachResult.RESET, ResetReason.AHEAD, None
    if cursor.seq < log.floor:
        if log.floor <= log.policy_floor:
            return AttachResult.RESUMED, ResetReason.NONE, (cursor.seq + 1, log.floor)
        return AttachResult.RESET, ResetReason.TRUNCATED, None
    if cursor.seq == log.floor:
        ts_at = log.floor_ts
    if cursor.seq > 0 and ts_at != cursor.ts:
        return AttachResult.RESET, ResetReason.FORK, None
    return AttachResult.RESUMED, ResetReason.NONE, None


def has_room(log: LogState, quota: Quota, size: int) -> bool:
    """Whether an entry of `size` bytes fits the quota. The first entry of an empty log always fits."""
    return log.top == log.floor or (log.top - log.floor < quota.entries and log.bytes + size <= quota.bytes)


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise ConfigError("policy", policy, f"one of {', '.join(POLICIES)}", known=POLICIES)
    return policy


def check_dedupe_key(key: str) -> str:
    if not isinstance(key, str) or len(key) > MAX_DEDUPE_KEY:
        raise ConfigError("dedupe_key", key, f"a text of at most {MAX_DEDUPE_KEY} characters")
    if not is_utf8(key):
        raise ConfigError("dedupe_key", key, "a text that can be written as UTF-8")
    return key
