"""How a message is pushed: its target, its texts and its options, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

from veredus.errors import ConfigError
from veredus.model.checks import choice
from veredus.model.delivery import LATE, ON_FAIL, POLICIES, SyncHint, check_dedupe_key
from veredus.model.options import DURABILITIES, seconds

Seconds = float | timedelta
_TARGETS = ("session", "user", "users", "group", "everyone")
_HINTS = {"before": SyncHint.BEFORE_RESPONSE, "after": SyncHint.AFTER_RESPONSE}


class PushArgs(TypedDict, total=False):
    """How a message is sent, for any kind of target."""

    type: str
    title: str
    content: str
    metadata: Mapping[str, str]
    sync_hint: SyncHint | int
    bind: int | tuple[int, str]
    ttl: Seconds
    dedupe_key: str
    wait: Seconds
    policy: str
    late: str
    on_fail: str
    durability: str


class TargetedPushArgs(PushArgs, total=False):
    """The same with the target: one of these."""

    session: str
    user: str
    users: Iterable[str]
    group: str
    everyone: bool


@dataclass(slots=True, kw_only=True)
class PushOptions:
    """The arguments of a push. Raises ConfigError for an option that is wrong."""

    session: str | None = None
    user: str | None = None
    users: Iterable[str] | None = None
    group: str | None = None
    everyone: bool = False
    type: str = ""
    title: str = ""
    content: str = ""
    metadata: Mapping[str, str] | None = None
    sync_hint: SyncHint | int = SyncHint.IMMEDIATE
    bind: int | tuple[int, str] | None = None
    ttl: Seconds | None = None
    dedupe_key: str = ""
    wait: Seconds | None = None
    policy: str = ""
    late: str = "send"
    on_fail: str = "send"
    durability: str = "any"
    hint: SyncHint = field(init=False)
    rid: int | None = field(init=False)
    """The request whose response the message is bound to."""
    expiry: str = field(init=False)
    """`+ms` from now; empty for none."""
    wait_ms: int = field(init=False)

    def __post_init__(self) -> None:
        hint, rid = check_binding(self.sync_hint, self.bind)
        targets = (self.session, self.user, self.users, self.group, self.everyone or None)
        if targets.count(None) != len(targets) - 1:
            given = [name for name, value in zip(_TARGETS, targets, strict=True) if value is not None]
            raise ConfigError("target", given or None, f"exactly one of {', '.join(_TARGETS)}")
        if isinstance(self.users, str) or not isinstance(self.users, Iterable | None):
            raise ConfigError("users", self.users, "a list of users")
        if rid is not None and self.session is None:
            raise ConfigError("bind", self.bind, "a push to a session: a request belongs to one")
        choice("late", self.late, LATE)
        choice("on_fail", self.on_fail, ON_FAIL)
        if self.policy:
            choice("policy", self.policy, POLICIES)
        check_dedupe_key(self.dedupe_key)
        choice("durability", self.durability, DURABILITIES)
        self.hint, self.rid = hint, rid
        self.expiry = "" if self.ttl is None else f"+{_ms('ttl', self.ttl)}"
        self.wait_ms = 0 if self.wait is None else _ms("wait", self.wait)


def check_binding(sync_hint: SyncHint | int, bind: int | tuple[int, str] | None) -> tuple[SyncHint, int | None]:
    """Both forms as one: a hint with a request's number, or `(number, "before" | "after")`."""
    if isinstance(bind, tuple):
        if len(bind) != 2 or bind[1] not in _HINTS:
            raise ConfigError("bind", bind, 'a request and a side, like (123, "before") or (123, "after")')
        sync_hint, bind = _HINTS[bind[1]], bind[0]
    try:
        hint = SyncHint(sync_hint)
    except ValueError:
        allowed = "0 (immediate), 1 (before the response) or 2 (after the response)"
        raise ConfigError("sync_hint", sync_hint, allowed) from None
    if bind is None:
        if hint is not SyncHint.IMMEDIATE:
            raise ConfigError("bind", bind, "the number of the request whose response is meant")
        return hint, None
    if not isinstance(bind, int) or isinstance(bind, bool) or not 0 < bind < 2**53:
        raise ConfigError("bind", bind, "the number of a request, from 1 on")
    return (hint, bind) if hint is not SyncHint.IMMEDIATE else (hint, None)


def _ms(name: str, value: Seconds) -> int:
    return math.ceil(seconds(name, value) * 1000)
