"""Ends clients' sessions from any process: disconnects sessions, or revokes a user's tokens."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from veredus.errors import ConfigError
from veredus.model.delivery import DISCONNECTED, MAX_END_REASON, REVOKED, REVOKED_FOR
from veredus.model.options import instant, seconds
from veredus.store.store import Store
from veredus.wire import session_keys as keys
from veredus.wire.times import unix_milliseconds

T = TypeVar("T")


class SessionEnding:
    """The part of the notifier that ends sessions. After a lost reply the same call is repeated, and counts the same
    sessions."""

    _store: Store

    if TYPE_CHECKING:

        async def _patiently(self, send: Callable[[], Awaitable[T]], *, repeatable: bool) -> T: ...

    async def disconnect(self, *, session: str | None = None, user: str | None = None, reason: str = "") -> int:
        """End a session, or all sessions of a user, connected or not. Returns how many. Their clients get close code
        4504 and the reason, at once or when they try to resume, and do not reconnect by themselves."""
        text = check_reason(reason)
        if (session is None) == (user is None):
            raise ConfigError("target", None if session is None else "both", "either session or user")
        if session is not None:
            keys.sid_tag(session)
            sids = [session]
        else:
            name = keys.check_name("user", user or "")
            sids = await self._patiently(lambda: self._store.sessions.sids_of(name), repeatable=True)
        return await self._end(sids, f"{DISCONNECTED}: {text}" if text else DISCONNECTED)

    async def revoke(
        self, *, user: str, before: datetime | float | None = None, keep: float | timedelta = REVOKED_FOR
    ) -> int:
        """Refuse a user's tokens that were issued before an instant (default: now), on all gateways, and end the
        sessions that were begun or renewed with one. Returns how many. Remembered for `keep` seconds, which must be
        longer than any token lives."""
        name = keys.check_name("user", user)
        before_ms, kept_ms = _before_ms(before), math.ceil(seconds("keep", keep) * 1000)
        if kept_ms == 0:
            raise ConfigError("keep", keep, "seconds above 0")
        revoked_ms, sids = await self._patiently(
            lambda: self._store.sessions.revoke(name, before_ms, kept_ms), repeatable=True
        )
        return await self._end(sids, REVOKED, before=revoked_ms)

    async def _end(self, sids: list[str], reason: str, before: int | None = None) -> int:
        if not sids:
            return 0
        call = secrets.token_hex(8)
        ended = await self._patiently(
            lambda: self._store.sessions.disconnect(sids, reason, call=call, before=before), repeatable=True
        )
        return sum(ended)


def check_reason(reason: Any) -> str:
    """The reason must fit into a WebSocket close frame."""
    if not isinstance(reason, str) or len(reason.encode("utf-8", "replace")) > MAX_END_REASON:
        raise ConfigError("reason", reason, f"a text of at most {MAX_END_REASON} bytes")
    return reason


def _before_ms(before: datetime | float | None) -> int | None:
    if before is None:
        return None
    if isinstance(before, datetime):
        return unix_milliseconds(instant("before", before))
    if isinstance(before, bool) or not isinstance(before, int | float) or not 0 <= before < 2**38:
        raise ConfigError("before", before, "an aware datetime, or Unix seconds")
    return math.ceil(before * 1000)
