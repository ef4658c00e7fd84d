"""The part of an app that sends to the clients of its gateway: pushes, groups, presence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from veredus.client.push_options import PushArgs
from veredus.errors import ConfigError
from veredus.model.delivery import REVOKED_FOR, PushResult, Spread

if TYPE_CHECKING:
    from veredus.app_server import AppServer
    from veredus.client.handle import Handle
    from veredus.client.notifier import Notifier, Presence, Pushed
    from veredus.store.sessions.sessions import SessionRow


_KNOWN = ("session", "user", "users", "group", "everyone", *PushArgs.__annotations__)


class Pushing:
    """What an app can do for clients, from any process; the gateway may run elsewhere."""

    server: AppServer

    @overload
    async def push(self, payload: Any = None, *, session: str, **how: Unpack[PushArgs]) -> PushResult: ...
    @overload
    async def push(self, payload: Any = None, *, user: str, **how: Unpack[PushArgs]) -> list[PushResult]: ...
    @overload
    async def push(
        self, payload: Any = None, *, users: Iterable[str], **how: Unpack[PushArgs]
    ) -> dict[str, list[PushResult]]: ...
    @overload
    async def push(self, payload: Any = None, *, group: str, **how: Unpack[PushArgs]) -> Spread: ...
    @overload
    async def push(self, payload: Any = None, *, everyone: Literal[True], **how: Unpack[PushArgs]) -> Spread: ...
    async def push(self, payload: Any = None, **how: Any) -> Pushed:
        """Send a message to clients: `await app.push({"n": 1}, user="bob", type="news")`.

        The target is one of `session`, `user`, `users`, `group`, `everyone=True`; the message has `type`, `title`,
        `content`, `metadata`; `bind=(123, "before")` (or `sync_hint` and `bind=123`) binds it to the response to a
        request; `ttl`, `wait` (for a user who has no session), `dedupe_key`, `policy`, `late`, `on_fail` and
        `durability` are those of `Notifier.push`.
        """
        for name in how:
            if name not in _KNOWN:
                raise ConfigError("option", name, f"one of {', '.join(_KNOWN)}", known=_KNOWN)
        return await self.notifier().push(payload, **how)

    @overload
    def push_sync(self, payload: Any = None, *, session: str, **how: Unpack[PushArgs]) -> PushResult: ...
    @overload
    def push_sync(self, payload: Any = None, *, user: str, **how: Unpack[PushArgs]) -> list[PushResult]: ...
    @overload
    def push_sync(
        self, payload: Any = None, *, users: Iterable[str], **how: Unpack[PushArgs]
    ) -> dict[str, list[PushResult]]: ...
    @overload
    def push_sync(self, payload: Any = None, *, group: str, **how: Unpack[PushArgs]) -> Spread: ...
    @overload
    def push_sync(self, payload: Any = None, *, everyone: Literal[True], **how: Unpack[PushArgs]) -> Spread: ...
    def push_sync(self, payload: Any = None, **how: Any) -> Pushed:
        """`push` for synchronous code."""
        return self.server.portal.run(self._push(payload, how))

    async def _push(self, payload: Any, how: Mapping[str, Any]) -> Pushed:
        pushed: Pushed = await self.push(payload, **how)
        return pushed

    async def join(self, session: str, group: str) -> bool:
        """Add a session to a group. Returns False if the session is gone."""
        return await self.notifier().join(session, group)

    async def leave(self, session: str, group: str) -> bool:
        """Remove a session from a group. Returns False if it was not a member."""
        return await self.notifier().leave(session, group)

    async def presence(self, user: str) -> Presence:
        """Where a user is connected: `(await app.presence("bob")).online`."""
        return await self.notifier().presence(user)

    async def members(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """The sessions in a group, connected or not (`state`), ordered by id. Fewer than `limit` means that this is
        the last page. `after` is the last id of the page before."""
        return await self.notifier().members(group, after=after, limit=limit)

    def members_sync(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """`members` for synchronous code."""
        return self.server.portal.run(self.members(group, after=after, limit=limit))

    async def disconnect(self, *, session: str | None = None, user: str | None = None, reason: str = "") -> int:
        """End a session, or all sessions of a user, connected or not: `await app.disconnect(user="bob", reason="spam")`
        returns how many.

        Their clients get close code 4504 and the reason, at once or when they try to resume, and do not reconnect by
        themselves. A user can begin a new session: to prevent that, see `revoke`.
        """
        return await self.notifier().disconnect(session=session, user=user, reason=reason)

    def disconnect_sync(self, *, session: str | None = None, user: str | None = None, reason: str = "") -> int:
        """`disconnect` for synchronous code."""
        return self.server.portal.run(self.disconnect(session=session, user=user, reason=reason))

    async def revoke(
        self, *, user: str, before: datetime | float | None = None, keep: float | timedelta = REVOKED_FOR
    ) -> int:
        """Refuse a user's tokens that were issued before an instant (default: now), on all gateways, and end the
        sessions that have such a token, with close code 4501. Returns how many sessions.

        The time of issue is the token's `iat` (`Identity.issued_at`), or the time of its first use if the authenticator
        gives none. The revocation is remembered for `keep` seconds (a year), which must be longer than any token lives.
        """
        return await self.notifier().revoke(user=user, before=before, keep=keep)

    def revoke_sync(
        self, *, user: str, before: datetime | float | None = None, keep: float | timedelta = REVOKED_FOR
    ) -> int:
        """`revoke` for synchronous code."""
        return self.server.portal.run(self.revoke(user=user, before=before, keep=keep))

    async def follow(self, handle: Handle[Any], *, session: str | None = None, user: str | None = None) -> None:
        """Notify a client about a task: each progress report and the end arrive as notifies of the types
        `task.progress` and `task.ended`, even if the process that called this ends."""
        from veredus.client.follow_relay import follow

        await follow(self.server.client(), handle, session=session, user=user)

    def follow_sync(self, handle: Handle[Any], *, session: str | None = None, user: str | None = None) -> None:
        """`follow` for synchronous code."""
        self.server.portal.run(self.follow(handle, session=session, user=user))

    def notifier(self) -> Notifier:
        """The notifier of the running event loop."""
        return self.server.client().notifier
