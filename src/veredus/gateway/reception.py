"""Where clients come in: who they are, which session they get, and the welcome with the first of what they missed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import secrets
from typing import Any

from veredus.clock import Clock
from veredus.errors import ConfigError, StoreError, Unauthorized
from veredus.gateway.addresses import Addresses
from veredus.gateway.auth import Identity, call_hook, identify
from veredus.gateway.config import GatewayConfig
from veredus.gateway.connection import Connection
from veredus.gateway.delivery import Delivery
from veredus.gateway.errands import Errands
from veredus.gateway.lifecycle import Lifecycle
from veredus.gateway.limits import Bucket
from veredus.model.delivery import Cursor, Quota, Verdict
from veredus.model.failure import drop_older_raises
from veredus.model.frames import CloseCode, ErrorCode, Hello, OpenRequest, Resume, Welcome
from veredus.store.sessions import Attached, Sessions
from veredus.wire.payload import encode_value
from veredus.wire.session_keys import new_sid
from veredus.worker.executors.threads import ThreadPool

logger = logging.getLogger("veredus.gateway")

TRIES = 100
BYE_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
AUTH_TIMEOUT = 10.0
"""Seconds that an authenticator may take."""
GRANT_AGAIN = 0.5


class Reception:
    """Hello, new tokens, groups and farewell. What it starts is ended with it."""

    def __init__(
        self,
        config: GatewayConfig,
        node: str,
        sessions: Sessions,
        delivery: Delivery,
        addresses: Addresses,
        lifecycle: Lifecycle,
        clock: Clock,
    ) -> None:
        self._config = config
        self._node = node
        self._sessions = sessions
        self._delivery = delivery
        self._addresses = addresses
        self._lifecycle = lifecycle
        self._clock = clock
        self._quota = Quota(entries=config.quota_entries, bytes=config.quota_bytes, policy=config.policy)
        self._errands = Errands("reception")
        self._threads = ThreadPool(config.hook_threads, lambda: None)

    def hello(self, connection: Connection, frame: Hello) -> None:
        self._errands.start(self._hello(connection, frame))

    def authenticate(self, connection: Connection, token: str) -> None:
        connection.turns.start(self._errands, lambda: self._renew(connection, token))

    def join(self, connection: Connection, group: str, joins: bool) -> None:
        connection.turns.start(self._errands, lambda: self._join(connection, group, joins))

    def bye(self, connection: Connection) -> None:
        connection.generation = 0  # it ends, so it is not detached
        self._errands.start(self._bye(connection.sid))

    # Coming.

    async def _hello(self, connection: Connection, hello: Hello) -> None:
        asked = self._clock.monotonic()
        identity = await self._identify(connection, hello.token)
        if identity is None or connection.over:
            return
        secret = secrets.token_urlsafe(24)
        try:
            if hello.resume is not None:
                welcomed = await self._resume(connection, identity, asked, hello, hello.resume, secret)
            else:
                welcomed = await self._begin(connection, identity, asked, secret, "new", "")
        except StoreError as exc:
            logger.debug("a client cannot be attached: %s", exc)
            connection.end(CloseCode.BACKEND_UNAVAILABLE, "the store cannot be reached", retry_after_ms=1000)
            return
        except (ConfigError, Unauthorized) as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc))
            return
        if welcomed:
            self._still_here(connection)

    def _still_here(self, connection: Connection) -> None:
        """Gone while it was being attached, it left before it had a session."""
        if connection.over:
            self._delivery.left(connection)

    async def _resume(
        self, connection: Connection, identity: Identity, asked: float, hello: Hello, resume: Resume, secret: str
    ) -> bool:
        try:
            attached = await self._sessions.attach(
                resume.sid,
                user=identity.user,
                secret_hash=hashed(resume.secret),
                next_secret_hash=hashed(secret),
                cursor=resume.cursor,
                node=self._node,
                connection=_connection_id(),
                rid_floor=hello.rid_floor,
                groups=identity.groups,
                issued=self._issued(identity, asked),
            )
        except ConfigError:  # what was shown is no session id
            attached = Attached("unknown", "unknown")
        if attached.result == "forbidden":
            connection.end(CloseCode.UNAUTHORIZED, "this session belongs to somebody else, or the secret is wrong")
            return False
        if attached.result == Verdict.CLOSED:
            connection.kicked(attached.reason)
            return False
        if attached.result == "unknown":
            return await self._begin(connection, identity, asked, secret, "reset", attached.reason or "unknown")
        connection.sid, connection.generation = resume.sid, attached.generation
        connection.known = frozenset(rid for rid, _ in attached.open_requests)
        if connection.over:
            return True
        self._admit(connection, identity, attached.base.seq)
        welcome = self._welcome(resume.sid, secret, attached.result, attached.reason, attached.base, attached.top)
        open_requests = tuple(OpenRequest(rid, state) for rid, state in attached.open_requests)
        connection.recorded = frozenset(rid for rid, state in attached.open_requests if state == "open")
        now = connection.resumed_at = self._clock.monotonic()
        connection.link.welcome(
            welcome._replace(open=open_requests),
            attached.entries,
            now,
            gap=attached.gap,
            wall_ms=round(self._clock.time() * 1000),
        )
        self._open(connection, identity, attached.result, now)
        return True

    async def _begin(
        self, connection: Connection, identity: Identity, asked: float, secret: str, result: str, reason: str
    ) -> bool:
        if not self._addresses.may_begin(connection.transport.host):
            connection.end(CloseCode.SERVER_OVERLOADED, "too many new sessions from this address", retry_after_ms=1000)
            return False
        created = await self._sessions.create(
            identity.user,
            node=self._node,
            connection=_connection_id(),
            secret_hash=hashed(secret),
            quota=self._quota,
            ttl_ms=round(self._config.session_ttl * 1000),
            groups=identity.groups,
            max_sessions=self._config.sessions_per_user,
            sid=new_sid(identity.user),
            issued=self._issued(identity, asked),
        )
        connection.sid, connection.generation = created.sid, created.generation
        if connection.over:
            return True
        self._admit(connection, identity, 0)
        cursor = Cursor(created.epoch, 0, 0)
        welcome = self._welcome(created.sid, secret, result, reason, cursor, created.top)
        now = self._clock.monotonic()
        connection.link.welcome(welcome, (), now, wall_ms=round(self._clock.time() * 1000))
        self._open(connection, identity, result, now)
        return True

    def _admit(self, connection: Connection, identity: Identity, acked: int) -> None:
        limits, config = identity.limits, self._config
        connection.identity = identity
        rate = limits.get("request_rate", config.request_rate)
        burst = limits.get("request_burst", config.request_burst)
        now = self._clock.monotonic()
        connection.bucket = Bucket(rate, burst, now)
        connection.link.allow(rate * 10, burst * 10, now)
        connection.written_ack = acked

    def _open(self, connection: Connection, identity: Identity, result: str, now: float) -> None:
        """The welcome and the first of what was missed leave in one write."""
        self._expiry(connection, identity, now)
        self._delivery.attach(connection)
        self._delivery.touch(connection)
        if not connection.over:
            self._lifecycle.connected(connection, identity, result)

    def _welcome(self, sid: str, secret: str, result: str, reason: str, cursor: Cursor, top: int) -> Welcome:
        """Heartbeat and limits are the link's to say."""
        return Welcome(
            sid=sid,
            secret=secret,
            result=result,
            reason=reason,
            cursor=cursor,
            top=top,
            node=self._node,
            session_ttl_ms=round(self._config.session_ttl * 1000),
        )

    # Staying.

    async def _identify(self, connection: Connection, token: str) -> Identity | None:
        try:
            async with asyncio.timeout(AUTH_TIMEOUT):
                return await identify(self._config.authenticate, token, self._clock.time(), self._threads)
        except Unauthorized as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        except TimeoutError:
            connection.end(CloseCode.BACKEND_UNAVAILABLE, "the authenticator takes too long", retry_after_ms=1000)
        except ConfigError as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        return None

    def _issued(self, identity: Identity, asked: float) -> str:
        """When the token was issued, as the store takes it; without a time of its own, when it was shown."""
        if identity.issued_at is not None:
            return str(math.floor(identity.issued_at * 1000))
        return f"-{math.ceil((self._clock.monotonic() - asked) * 1000)}"

    async def _renew(self, connection: Connection, token: str) -> None:
        """A new token before the old one expires: for the same user, or the connection ends."""
        known, asked = connection.identity, self._clock.monotonic()
        identity = await self._identify(connection, token)
        if identity is None or connection.over or known is None:
            return
        if identity.user != known.user:
            connection.end(CloseCode.UNAUTHORIZED, "this token is somebody else's")
            return
        if not await self._grant(connection, identity, asked):
            return
        connection.identity = identity
        self._expiry(connection, identity, self._clock.monotonic())

    async def _grant(self, connection: Connection, identity: Identity, asked: float) -> bool:
        """The groups of the new token are those of the session, unless it is revoked. Without the store it is tried
        again until the connection ends, at the latest when the token before expires."""
        while not connection.over:
            try:
                issued = self._issued(identity, asked)
                if not await self._sessions.grant(connection.sid, identity.groups, issued=issued):
                    connection.lost()
                break
            except StoreError:
                await asyncio.sleep(GRANT_AGAIN)
            except (ConfigError, Unauthorized) as exc:
                connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        return not connection.over

    def _expiry(self, connection: Connection, identity: Identity, now: float) -> None:
        left = None if identity.expires_at is None else identity.expires_at - self._clock.time()
        connection.link.token_expires(None if left is None else now + left)

    async def _join(self, connection: Connection, group: str, joins: bool) -> None:
        """Joined only if the hook says so; leaving needs no leave. The answer is an unnumbered message. Without the
        store it is "try again" (503)."""
        refusal, code = "", ErrorCode.FORBIDDEN
        try:
            if not joins:
                await self._sessions.leave(connection.sid, group)
            elif not await self._may_join(connection, group):
                refusal = "not allowed"
            elif not await self._sessions.join(connection.sid, group):
                refusal, code = "the session has ended", ErrorCode.UNAVAILABLE
        except ConfigError as exc:
            refusal = str(exc)
        except StoreError:
            refusal, code = "the store cannot be reached", ErrorCode.UNAVAILABLE
        if connection.over:
            return
        answer = {
            "group": group,
            "joined": joins and not refusal,
            "code": int(code) if refusal else 0,
            "error": refusal,
        }
        await self._tell(connection, "veredus.group", answer)

    async def _tell(self, connection: Connection, kind: str, answer: dict[str, Any]) -> None:
        """An unnumbered message is dropped while others wait to leave: this one tries again for a while."""
        for _ in range(TRIES):
            if connection.over:
                return
            told = connection.link.volatile(kind, encode_value(answer), self._clock.monotonic())
            self._delivery.touch(connection)
            if told:
                return
            await asyncio.sleep(0.02)

    async def _may_join(self, connection: Connection, group: str) -> bool:
        hook, identity = self._config.may_join, connection.identity
        if hook is None or identity is None:
            return False
        try:
            async with asyncio.timeout(AUTH_TIMEOUT):
                return bool(await call_hook(self._threads, hook, identity, group))
        except Exception as exc:
            drop_older_raises(exc)
            logger.error("may_join raised %r", exc)
            return False

    # Leaving.

    async def _bye(self, sid: str) -> None:
        """Tried for a while. After that it is detached by the search for strays, and ends when its time is over."""
        for pause in BYE_PAUSES:
            try:
                await self._delivery.write_acks_of(sid)
                await self._sessions.close(sid, "closed")
            except StoreError as exc:
                logger.debug("session %s is not closed yet: %s", sid, exc)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            else:
                return

    async def close(self) -> None:
        await self._errands.close(0.0)
        self._threads.close()


def hashed(secret: str) -> str:
    """What Redis keeps of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _connection_id() -> str:
    return secrets.token_hex(6)
