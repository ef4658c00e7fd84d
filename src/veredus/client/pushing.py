"""The part of an app that reaches the clients of its gateway: pushes, groups, presence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from veredus.client.blocking import BlockingPortal
from veredus.errors import ConfigError
from veredus.model.delivery import REVOKED_FOR, PushResult, Spread, SyncHint

if TYPE_CHECKING:
    from veredus.client.client import Client
    from veredus.client.handle import Handle
    from veredus.client.notifier import Notifier, Presence, Pushed
    from veredus.store.sessions import SessionRow


class PushArgs(TypedDict, total=False):
    """How a message is sent, whatever the target."""

    type: str
    title: str
    content: str
    metadata: Mapping[str, str]
    sync_hint: SyncHint | int
    bind: int | tuple[int, str]
    ttl: float | timedelta
    dedupe_key: str
    wait: float | timedelta
    policy: str
    late: str
    on_fail: str
    durability: str


_KNOWN = ("session", "user", "users", "group", "everyone", *PushArgs.__annotations__)


class Pushing:
    """What an app can say to clients, from any process: no gateway needs to run in this one."""

    _portal: BlockingPortal

    if TYPE_CHECKING:

        def _client(self) -> Client: ...

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
        return self._portal.run(self._push(payload, how))

    async def _push(self, payload: Any, how: Mapping[str, Any]) -> Pushed:
        pushed: Pushed = await self.push(payload, **how)
        return pushed

    async def join(self, session: str, group: str) -> bool:
        """Make a session a member of a group; False if the session is gone."""
        return await self.notifier().join(session, group)

    async def leave(self, session: str, group: str) -> bool:
        """End a session's membership in a group; False if it was no member."""
        return await self.notifier().leave(session, group)

    async def presence(self, user: str) -> Presence:
        """Where a user is connected: `(await app.presence("bob")).online`."""
        return await self.notifier().presence(user)

    async def members(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """The sessions in a group, connected or not (`state`), in the order of their ids; fewer than `limit` means that
        these are the last. `after` is the id of the last one of the page before."""
        return await self.notifier().members(group, after=after, limit=limit)

    def members_sync(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """`members` for synchronous code."""
        return self._portal.run(self.members(group, after=after, limit=limit))

    async def disconnect(self, *, session: str | None = None, user: str | None = None, reason: str = "") -> int:
        """End a session, or all sessions of a user, connected or not: `await app.disconnect(user="bob", reason="spam")`
        returns how many.

        Their clients get close code 4504 and the reason, at once or when they try to resume, and do not come back by
        themselves. Nothing keeps a user from beginning a new session: see `revoke`.
        """
        return await self.notifier().disconnect(session=session, user=user, reason=reason)

    def disconnect_sync(self, *, session: str | None = None, user: str | None = None, reason: str = "") -> int:
        """`disconnect` for synchronous code."""
        return self._portal.run(self.disconnect(session=session, user=user, reason=reason))

    async def revoke(
        self, *, user: str, before: datetime | float | None = None, keep: float | timedelta = REVOKED_FOR
    ) -> int:
        """Refuse the tokens of a user that were issued before an instant (default: now) from now on, on all gateways,
        and end the sessions that have such a token, with close code 4501; returns how many.

        A token was issued at its `iat` (`Identity.issued_at`); where the authenticator gives none, when it was shown.
        It is remembered for `keep` seconds (a year), which must be longer than any token lives.
        """
        return await self.notifier().revoke(user=user, before=before, keep=keep)

    def revoke_sync(
        self, *, user: str, before: datetime | float | None = None, keep: float | timedelta = REVOKED_FOR
    ) -> int:
        """`revoke` for synchronous code."""
        return self._portal.run(self.revoke(user=user, before=before, keep=keep))

    async def follow(self, handle: Handle[Any], *, session: str | None = None, user: str | None = None) -> None:
        """Tell a client how a task goes on: every progress it reports and how it ends arrive as notifies of the types
        `task.progress` and `task.ended`, whatever becomes of the process that called this."""
        from veredus.client.following import follow

        await follow(self._client(), handle, session=session, user=user)

    def follow_sync(self, handle: Handle[Any], *, session: str | None = None, user: str | None = None) -> None:
        """`follow` for synchronous code."""
        self._portal.run(self.follow(handle, session=session, user=user))

    def notifier(self) -> Notifier:
        """The notifier of the running event loop."""
        return self._client().notifier
