"""Notifier: messages to clients of the gateway, from any process; concurrent pushes share round trips."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from veredus.client.carried import with_carried
from veredus.client.ending import Ending
from veredus.clock import SYSTEM, Clock
from veredus.errors import ConfigError, ConnectionLost, NotReady, PayloadTooLarge
from veredus.model.delivery import (
    LATE,
    MAX_BODY,
    ON_FAIL,
    POLICIES,
    NotifyItem,
    PushResult,
    Spread,
    SyncHint,
    check_dedupe_key,
)
from veredus.model.frames import Kind, Message
from veredus.model.options import DURABILITIES, seconds
from veredus.store.batching import Coalescer
from veredus.store.durable import Durable
from veredus.store.outbox import Append, Bind, Outbox, Post
from veredus.store.sessions import SessionRow
from veredus.store.store import Store
from veredus.wire import session_keys as keys
from veredus.wire.frames import encode_tail
from veredus.wire.payload import encode_value

T = TypeVar("T")
MAX_LISTED = 10_000
"""Sessions in one page."""
Seconds = float | timedelta
Pushed = PushResult | list[PushResult] | dict[str, list[PushResult]] | Spread
_HINTS = {"before": SyncHint.BEFORE_RESPONSE, "after": SyncHint.AFTER_RESPONSE}


@dataclass(frozen=True, slots=True)
class Presence:
    """Where a user is connected."""

    user: str
    sessions: list[SessionRow]
    """All that can be reached or resumed, the one attached last at the end."""
    connected: list[SessionRow]
    """Those attached to a node that lives."""

    @property
    def online(self) -> bool:
        return bool(self.connected)


class Notifier(Ending):
    """The producer's side of the gateway over one store. Belongs to one event loop."""

    def __init__(self, store: Store, *, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._patience = store.patience
        self._clock = clock
        self._desks: dict[str, _Desk] = {}

    async def push(
        self,
        payload: Any = None,
        *,
        session: str | None = None,
        user: str | None = None,
        users: Iterable[str] | None = None,
        group: str | None = None,
        everyone: bool = False,
        type: str = "",
        title: str = "",
        content: str = "",
        metadata: Mapping[str, str] | None = None,
        sync_hint: SyncHint | int = SyncHint.IMMEDIATE,
        bind: int | tuple[int, str] | None = None,
        ttl: Seconds | None = None,
        dedupe_key: str = "",
        wait: Seconds | None = None,
        policy: str = "",
        late: str = "send",
        on_fail: str = "send",
        durability: str = "any",
    ) -> Pushed:
        """Send a message to one target. Bytes travel as they are, None as no body, anything else as JSON.

        `session` gives one PushResult; `user` a list, one for each of the user's sessions; `users` a dict of such
        lists; `group` and `everyone` a Spread with counts. `bind=(123, "before")`, or `bind=123` with `sync_hint`,
        binds it to the response to the session's request 123. `wait` lets it wait so many seconds for a user who has
        no session. Raises NotConfirmed where `durability` asked for more than the server could confirm.
        """
        hint, rid = check_binding(sync_hint, bind)
        _one_target(session=session, user=user, users=users, group=group, everyone=everyone or None)
        if rid is not None and session is None:
            raise ConfigError("bind", bind, "a push to a session: a request belongs to one")
        for name, value, allowed in (("late", late, LATE), ("on_fail", on_fail, ON_FAIL)):
            _check(name, value, allowed)
        if policy:
            _check("policy", policy, POLICIES)
        check_dedupe_key(dedupe_key)
        desk = self._desk(_check("durability", durability, DURABILITIES))
        expiry = "" if ttl is None else f"+{_ms('ttl', ttl)}"
        wait_ms = 0 if wait is None else _ms("wait", wait)
        tail = self._tail(
            payload,
            type,
            title,
            content,
            with_carried(metadata),
            hint,
            rid or 0,
            group or "",
            Kind.GROUP if group else Kind.NOTIFY,
        )

        async def send() -> Pushed:
            if session is not None:
                keys.sid_tag(session)
                if rid is not None:
                    return await desk.binds.add(
                        Bind(session, rid, hint, tail, expiry, dedupe_key, late, on_fail, policy)
                    )
                return await desk.appends.add(Append(session, tail, expiry, dedupe_key, policy))
            if user is not None:
                return await desk.posts.add(Post(_name(user), tail, expiry, dedupe_key, policy, wait_ms))
            if users is not None:
                rows = [Post(_name(one), tail, expiry, dedupe_key, policy, wait_ms) for one in dict.fromkeys(users)]
                answers = await desk.outbox.append_to_users(rows)
                return {row.user: answer for row, answer in zip(rows, answers, strict=True)}
            how: dict[str, Any] = {"expiry": expiry, "dedupe_key": dedupe_key, "policy": policy}
            how["patience"] = self._patience
            if group is not None:
                return await desk.outbox.append_to_group(group, tail, **how)
            return await desk.outbox.append_to_everyone(tail, **how)

        return await self._patiently(send, repeatable=bool(dedupe_key))

    async def push_item(self, session: str, item: NotifyItem) -> PushResult:
        """One notify as a value: immediate, or bound before or after a response, as it says itself."""
        hint, rid = check_binding(item.sync_hint, item.bind_client_seq_id)
        keys.sid_tag(session)
        tail = self.item_tail(item)
        desk = self._desk("any")
        if rid is None:
            return await desk.appends.add(Append(session, tail))
        return await desk.binds.add(Bind(session, rid, hint, tail))

    def item_tail(self, item: NotifyItem) -> bytes:
        return encode_tail(
            Message(
                kind=Kind.NOTIFY,
                type=item.type,
                title=item.title,
                content=item.content,
                metadata=with_carried(item.metadata),
                body=_sized(item.data),
                sync_hint=item.sync_hint,
                bind_client_seq_id=item.bind_client_seq_id or 0,
                create_time=item.create_time or self._now_ms(),
                encoding=item.encoding,
            )
        )

    async def join(self, session: str, group: str) -> bool:
        """Make a session a member of a group; False if the session is gone."""
        return await self._store.sessions.join(session, group)

    async def leave(self, session: str, group: str) -> bool:
        """False if it was no member."""
        return await self._store.sessions.leave(session, group)

    async def presence(self, user: str) -> Presence:
        """Which sessions a user has, and which of them are connected right now."""
        sessions = await self._store.sessions.sessions_of(user)
        alive = {name for name, info in (await self._store.nodes.nodes()).items() if info.alive}
        return Presence(user, sessions, [one for one in sessions if one.state == "attached" and one.node in alive])

    async def members(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """The sessions in a group, connected or not, in the order of their ids, from the one behind `after` on."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= MAX_LISTED:
            raise ConfigError("limit", limit, f"a whole number from 1 to {MAX_LISTED:,}")
        return await self._store.sessions.members(group, after=after, limit=limit)

    async def close(self) -> None:
        for desk in self._desks.values():
            if desk.durable is not None:
                await desk.durable.close()

    def _tail(
        self,
        payload: Any,
        type: str,
        title: str,
        content: str,
        metadata: Mapping[str, str],
        hint: SyncHint,
        rid: int,
        group: str,
        kind: Kind,
    ) -> bytes:
        raw = isinstance(payload, bytes | bytearray | memoryview)
        body = bytes(payload) if raw else b"" if payload is None else encode_value(payload)
        return encode_tail(
            Message(
                kind=kind,
                type=type,
                title=title,
                content=content,
                metadata=metadata,
                body=_sized(body),
                group=group,
                sync_hint=hint,
                bind_client_seq_id=rid,
                create_time=self._now_ms(),
                encoding="raw" if raw else "json",
            )
        )

    def _now_ms(self) -> int:
        return round(self._clock.time() * 1000)

    def _desk(self, durability: str) -> _Desk:
        desk = self._desks.get(durability)
        if desk is None:
            durable = None if durability == "any" else Durable(self._store.redis, durability)
            outbox = self._store.outbox if durable is None else Outbox(durable)
            desk = self._desks[durability] = _Desk(outbox, durable)
        return desk

    async def _patiently(self, send: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """A server that refuses for the moment is asked again for a while. After a lost connection nobody knows whether
        the message got through: it is sent again only if its key makes that safe."""
        give_up = self._clock.monotonic() + self._patience
        pause = 0.05
        while True:
            try:
                return await send()
            except (NotReady, ConnectionLost) as exc:
                sure = isinstance(exc, NotReady) or repeatable
                if not sure or self._clock.monotonic() + pause > give_up:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 1.0)


class _Desk:
    """Where pushes of one durability are collected."""

    def __init__(self, outbox: Outbox, durable: Durable | None) -> None:
        self.outbox = outbox
        self.durable = durable
        self.appends: Coalescer[Append, PushResult] = Coalescer(outbox.append, lambda row: len(row.tail))
        self.posts: Coalescer[Post, list[PushResult]] = Coalescer(outbox.append_to_users, lambda row: len(row.tail))
        self.binds: Coalescer[Bind, PushResult] = Coalescer(outbox.bind_many, lambda row: len(row.tail))


def check_binding(sync_hint: SyncHint | int, bind: int | tuple[int, str] | None) -> tuple[SyncHint, int | None]:
    """The two ways to say it, in one: a hint with a request's number, or `(number, "before" | "after")`."""
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


def _one_target(**targets: Any) -> None:
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        raise ConfigError("target", given or None, f"exactly one of {', '.join(targets)}")


def _check(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(field, value, f"one of {', '.join(allowed)}", known=allowed)
    return value


def _name(user: str) -> str:
    return keys.check_name("user", user)


def _ms(field: str, value: Seconds) -> int:
    return math.ceil(seconds(field, value) * 1000)


def _sized(body: bytes) -> bytes:
    if len(body) > MAX_BODY:
        raise PayloadTooLarge(len(body), MAX_BODY)
    return body
