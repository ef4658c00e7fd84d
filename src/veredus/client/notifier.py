"""Notifier: sends messages to clients of the gateway, from any process. Concurrent pushes share round trips."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from veredus.client.push_options import PushOptions, TargetedPushArgs, check_binding
from veredus.client.session_ending import SessionEnding
from veredus.client.trace_metadata import with_trace
from veredus.clock import SYSTEM, Clock
from veredus.errors import ConnectionLost, NotReady, PayloadTooLarge
from veredus.model.backoff import Backoff
from veredus.model.checks import whole
from veredus.model.delivery import (
    MAX_BODY,
    NotifyItem,
    PushResult,
    Spread,
)
from veredus.model.frames import Kind, Message
from veredus.store.connection.batching import Coalescer
from veredus.store.connection.replication import Replication
from veredus.store.sessions.outbox import Append, Bind, Outbox, Post
from veredus.store.sessions.sessions import SessionRow
from veredus.store.store import Store
from veredus.wire import session_keys as keys
from veredus.wire.frames import encode_stored
from veredus.wire.payload import encode_value

T = TypeVar("T")
MAX_LISTED = 10_000
"""Sessions on one page."""
Pushed = PushResult | list[PushResult] | dict[str, list[PushResult]] | Spread


@dataclass(frozen=True, slots=True)
class Presence:
    """Where a user is connected."""

    user: str
    sessions: list[SessionRow]
    """All sessions that are connected or can be resumed; the one attached last comes last."""
    connected: list[SessionRow]
    """The sessions that are attached to a live node."""

    @property
    def online(self) -> bool:
        return bool(self.connected)


class Notifier(SessionEnding):
    """The producer's side of the gateway over one store. Belongs to one event loop."""

    def __init__(self, store: Store, *, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._patience = store.patience
        self._clock = clock
        self._batches: dict[str, _PushBatches] = {}

    async def push(self, payload: Any = None, **options: Unpack[TargetedPushArgs]) -> Pushed:
        """Send a message to one target. Bytes are sent unchanged, None means no body, anything else is sent as JSON.

        `session` gives one PushResult; `user` a list, one for each of the user's sessions; `users` a dict of such
        lists; `group` and `everyone` a Spread with counts. `bind=(123, "before")`, or `bind=123` with `sync_hint`,
        binds it to the response to the session's request 123. `wait` is how many seconds it waits for a user who has
        no session. Raises NotConfirmed if the server did not confirm the `durability`.
        """
        push = PushOptions(**options)
        tail = self._tail(payload, push)
        send = functools.partial(self._send, self._batches_for(push.durability), push, tail)
        return await self._patiently(send, repeatable=bool(push.dedupe_key))

    async def _send(self, batches: _PushBatches, push: PushOptions, tail: bytes) -> Pushed:
        expiry, dedupe_key, policy = push.expiry, push.dedupe_key, push.policy
        if push.session is not None:
            keys.sid_tag(push.session)
            if push.rid is not None:
                return await batches.binds.add(
                    Bind(push.session, push.rid, push.hint, tail, expiry, dedupe_key, push.late, push.on_fail, policy)
                )
            return await batches.appends.add(Append(push.session, tail, expiry, dedupe_key, policy))
        if push.user is not None:
            return await batches.posts.add(Post(_name(push.user), tail, expiry, dedupe_key, policy, push.wait_ms))
        if push.users is not None:
            users = dict.fromkeys(push.users)
            rows = [Post(_name(one), tail, expiry, dedupe_key, policy, push.wait_ms) for one in users]
            answers = await batches.outbox.append_to_users(rows)
            return {row.user: answer for row, answer in zip(rows, answers, strict=True)}
        how: dict[str, Any] = {"expiry": expiry, "dedupe_key": dedupe_key, "policy": policy}
        how["patience"] = self._patience
        if push.group is not None:
            return await batches.outbox.append_to_group(push.group, tail, **how)
        return await batches.outbox.append_to_everyone(tail, **how)

    async def push_item(self, session: str, item: NotifyItem) -> PushResult:
        """One notify as a value: immediate, or bound before or after a response, as it says itself."""
        hint, rid = check_binding(item.sync_hint, item.bind_client_seq_id)
        keys.sid_tag(session)
        tail = self.item_tail(item)
        batches = self._batches_for("any")
        if rid is None:
            return await batches.appends.add(Append(session, tail))
        return await batches.binds.add(Bind(session, rid, hint, tail))

    def item_tail(self, item: NotifyItem) -> bytes:
        return encode_stored(
            Message(
                kind=Kind.NOTIFY,
                type=item.type,
                title=item.title,
                content=item.content,
                metadata=with_trace(item.metadata),
                body=_sized(item.data),
                sync_hint=item.sync_hint,
                bind_client_seq_id=item.bind_client_seq_id or 0,
                create_time=item.create_time or self._now_ms(),
                encoding=item.encoding,
            )
        )

    async def join(self, session: str, group: str) -> bool:
        """Add a session to a group. Returns False if the session is gone."""
        return await self._store.sessions.join(session, group)

    async def leave(self, session: str, group: str) -> bool:
        """Returns False if it was not a member."""
        return await self._store.sessions.leave(session, group)

    async def presence(self, user: str) -> Presence:
        """A user's sessions, and which of them are connected right now."""
        sessions = await self._store.sessions.sessions_of(user)
        alive = {name for name, info in (await self._store.nodes.nodes()).items() if info.alive}
        return Presence(user, sessions, [one for one in sessions if one.state == "attached" and one.node in alive])

    async def members(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """The sessions in a group, connected or not, ordered by id, starting after the id `after`."""
        return await self._store.sessions.members(group, after=after, limit=whole("limit", limit, 1, MAX_LISTED))

    async def close(self) -> None:
        for batches in self._batches.values():
            if batches.durable is not None:
                await batches.durable.close()

    def _tail(self, payload: Any, push: PushOptions) -> bytes:
        raw = isinstance(payload, bytes | bytearray | memoryview)
        body = bytes(payload) if raw else b"" if payload is None else encode_value(payload)
        return encode_stored(
            Message(
                kind=Kind.GROUP if push.group else Kind.NOTIFY,
                type=push.type,
                title=push.title,
                content=push.content,
                metadata=with_trace(push.metadata),
                body=_sized(body),
                group=push.group or "",
                sync_hint=push.hint,
                bind_client_seq_id=push.rid or 0,
                create_time=self._now_ms(),
                encoding="raw" if raw else "json",
            )
        )

    def _now_ms(self) -> int:
        return round(self._clock.time() * 1000)

    def _batches_for(self, durability: str) -> _PushBatches:
        batches = self._batches.get(durability)
        if batches is None:
            durable = None if durability == "any" else Replication(self._store.redis, durability)
            outbox = self._store.outbox if durable is None else Outbox(durable)
            batches = self._batches[durability] = _PushBatches(outbox, durable)
        return batches

    async def _patiently(self, send: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """While the server refuses for the moment, try again. After a lost connection the outcome is unknown: the
        message is sent again only if its dedupe key makes that safe."""
        give_up = self._clock.monotonic() + self._patience
        backoff = Backoff()
        while True:
            try:
                return await send()
            except (NotReady, ConnectionLost) as exc:
                sure = isinstance(exc, NotReady) or repeatable
                if not sure or self._clock.monotonic() + backoff.next > give_up:
                    raise
            await asyncio.sleep(backoff.take())


class _PushBatches:
    """Collects the pushes with the same durability."""

    def __init__(self, outbox: Outbox, durable: Replication | None) -> None:
        self.outbox = outbox
        self.durable = durable
        self.appends: Coalescer[Append, PushResult] = Coalescer(outbox.append, lambda row: len(row.tail))
        self.posts: Coalescer[Post, list[PushResult]] = Coalescer(outbox.append_to_users, lambda row: len(row.tail))
        self.binds: Coalescer[Bind, PushResult] = Coalescer(outbox.bind_many, lambda row: len(row.tail))


def _name(user: str) -> str:
    return keys.check_name("user", user)


def _sized(body: bytes) -> bytes:
    if len(body) > MAX_BODY:
        raise PayloadTooLarge(len(body), MAX_BODY)
    return body
