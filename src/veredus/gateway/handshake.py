"""Handshake: authenticates a client, attaches or creates its session, and welcomes it with its missed messages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import secrets
from collections.abc import Coroutine
from typing import Any

from veredus.errors import ConfigError, StoreError, Unauthorized
from veredus.gateway.auth import Identity, call_hook, identify
from veredus.gateway.background import BackgroundTasks
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.client_hooks import ClientHooks
from veredus.gateway.delivery import Delivery
from veredus.gateway.limits import Bucket
from veredus.gateway.services import Services
from veredus.handlers.executors.threads import ThreadPool
from veredus.model.delivery import AttachResult, Cursor, Quota
from veredus.model.failure import drop_older_raises
from veredus.model.frames import CloseCode, ErrorCode, Hello, OpenRequest, Resume, Welcome
from veredus.store.sessions.sessions import Attached
from veredus.wire.payload import encode_value
from veredus.wire.session_keys import new_sid

logger = logging.getLogger("veredus.gateway")

VOLATILE_TRIES = 100
BYE_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
AUTH_TIMEOUT = 10.0
"""Seconds that an authenticator may take."""
GRANT_RETRY = 0.5
"""Seconds between two tries to store the groups of a new token."""


class Handshake:
    """Handles hello, new tokens, groups and bye."""

    def __init__(self, services: Services, delivery: Delivery, hooks: ClientHooks) -> None:
        config = services.config
        self._config = config
        self._node = services.node
        self._sessions = services.store.sessions
        self._delivery = delivery
        self._addresses = services.addresses
        self._outages = services.outages
        self._hooks = hooks
        self._clock = services.clock
        self._quota = Quota(entries=config.quota_entries, bytes=config.quota_bytes, policy=config.policy)
        self._background = BackgroundTasks("handshake")
        self._threads = ThreadPool(config.hook_threads, lambda: None)

    def hello(self, connection: ClientConnection, frame: Hello) -> None:
        self._background.start(self._guard(connection, self._hello(connection, frame)))

    def authenticate(self, connection: ClientConnection, token: str) -> None:
        connection.client_tasks.start(
            self._background, "token", lambda: self._guard(connection, self._renew(connection, token))
        )

    def join(self, connection: ClientConnection, group: str, joins: bool) -> None:
        connection.client_tasks.start(self._background, ("group", group), lambda: self._join(connection, group, joins))

    def bye(self, connection: ClientConnection) -> None:
        connection.generation = 0  # the session ends, so it is not detached
        self._background.start(self._bye(connection.sid))

    async def _guard(self, connection: ClientConnection, work: Coroutine[Any, Any, None]) -> None:
        """A bug ends the connection: otherwise its client would never get an answer."""
        try:
            await work
        except Exception:  # raised again, to be logged
            connection.end(CloseCode.INTERNAL, "internal error")
            raise

    # Hello.

    async def _hello(self, connection: ClientConnection, hello: Hello) -> None:
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
            logger.debug("cannot attach a client: %s", exc)
            connection.end(CloseCode.BACKEND_UNAVAILABLE, "the store cannot be reached", retry_after_ms=1000)
            return
        except (ConfigError, Unauthorized) as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc))
            return
        if welcomed:
            self._detach_if_closed(connection)

    def _detach_if_closed(self, connection: ClientConnection) -> None:
        """A connection that closed during the attach could not detach its session."""
        if connection.over:
            self._delivery.left(connection)

    async def _resume(
        self, connection: ClientConnection, identity: Identity, asked: float, hello: Hello, resume: Resume, secret: str
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
        except ConfigError:  # not a session id
            attached = Attached("unknown", "unknown")
        if attached.result == "forbidden":
            connection.end(CloseCode.UNAUTHORIZED, "this session belongs to another user, or the secret is wrong")
            return False
        if attached.result == AttachResult.CLOSED:
            connection.kicked(attached.reason)
            return False
        if attached.result == "unknown":
            return await self._begin(connection, identity, asked, secret, "reset", attached.reason or "unknown")
        connection.sid, connection.generation = resume.sid, attached.generation
        connection.known_rids = frozenset(rid for rid, _ in attached.open_requests)
        if connection.over:
            return True
        self._admit(connection, identity, attached.base.seq)
        welcome = self._welcome(resume.sid, secret, attached.result, attached.reason, attached.base, attached.top)
        open_requests = tuple(OpenRequest(rid, state) for rid, state in attached.open_requests)
        connection.unanswered_rids = frozenset(rid for rid, state in attached.open_requests if state == "open")
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
        self, connection: ClientConnection, identity: Identity, asked: float, secret: str, result: str, reason: str
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

    def _admit(self, connection: ClientConnection, identity: Identity, acked: int) -> None:
        self._limit(connection, identity)
        connection.written_ack = acked

    def _limit(self, connection: ClientConnection, identity: Identity) -> None:
        """Apply the limits of a token. A new token does not give back what was used under the one before it."""
        limits, config = identity.limits, self._config
        connection.identity = identity
        rate = limits.get("request_rate", config.request_rate)
        burst = limits.get("request_burst", config.request_burst)
        now = self._clock.monotonic()
        if connection.bucket is None:
            connection.bucket = Bucket(rate, burst, now)
        else:
            connection.bucket.change(rate, burst, now)
        connection.link.allow(rate * 10, burst * 10, now)

    def _open(self, connection: ClientConnection, identity: Identity, result: str, now: float) -> None:
        """Send the welcome and the first missed messages in one write."""
        self._expiry(connection, identity, now)
        self._delivery.attach(connection)
        self._delivery.touch(connection)
        if not connection.over:
            self._hooks.connected(connection, identity, result)

    def _welcome(self, sid: str, secret: str, result: str, reason: str, cursor: Cursor, top: int) -> Welcome:
        """The link adds heartbeat and limits."""
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

    # Tokens and groups.

    async def _identify(self, connection: ClientConnection, token: str) -> Identity | None:
        try:
            async with asyncio.timeout(AUTH_TIMEOUT):
                hook, failed = self._config.authenticate, self._authenticator_failed
                return await identify(hook, token, self._clock.time(), self._threads, failed)
        except Unauthorized as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        except TimeoutError:
            connection.end(CloseCode.BACKEND_UNAVAILABLE, "the authenticator took too long", retry_after_ms=1000)
        except ConfigError as exc:
            connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        return None

    def _authenticator_failed(self, exc: Exception) -> None:
        self._outages.log(("hooks", "authenticate", type(exc)), f"authenticate raised {exc!r}", logging.ERROR, exc)

    def _issued(self, identity: Identity, asked: float) -> str:
        """When the token was issued, in the store's format. Without `issued_at`, when the client presented it."""
        if identity.issued_at is not None:
            return str(math.floor(identity.issued_at * 1000))
        return f"-{math.ceil((self._clock.monotonic() - asked) * 1000)}"

    async def _renew(self, connection: ClientConnection, token: str) -> None:
        """Replace the token before it expires. A token of another user ends the connection."""
        known, asked = connection.identity, self._clock.monotonic()
        identity = await self._identify(connection, token)
        if identity is None or connection.over or known is None:
            return
        if identity.user != known.user:
            connection.end(CloseCode.UNAUTHORIZED, "this token belongs to another user")
            return
        if not await self._grant(connection, identity, asked):
            return
        self._limit(connection, identity)
        self._expiry(connection, identity, self._clock.monotonic())

    async def _grant(self, connection: ClientConnection, identity: Identity, asked: float) -> bool:
        """Store the groups of the new token, unless it is revoked. Without Redis this is retried until the connection
        ends, at the latest when the old token expires."""
        while not connection.over:
            try:
                issued = self._issued(identity, asked)
                if not await self._sessions.grant(connection.sid, identity.groups, issued=issued):
                    connection.lost()
                break
            except StoreError:
                await asyncio.sleep(GRANT_RETRY)
            except (ConfigError, Unauthorized) as exc:
                connection.end(CloseCode.UNAUTHORIZED, str(exc)[:100])
        return not connection.over

    def _expiry(self, connection: ClientConnection, identity: Identity, now: float) -> None:
        left = None if identity.expires_at is None else identity.expires_at - self._clock.time()
        connection.link.token_expires(None if left is None else now + left)

    async def _join(self, connection: ClientConnection, group: str, joins: bool) -> None:
        """Join or leave a group. Joining needs the permission of the hook. The answer is an unnumbered message; without
        Redis it is error 503."""
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
        await self._send_volatile(connection, "veredus.group", answer)

    async def _send_volatile(self, connection: ClientConnection, kind: str, answer: dict[str, Any]) -> None:
        """Send an unnumbered message. The link drops these while output is queued, so retry for two seconds."""
        for _ in range(VOLATILE_TRIES):
            if connection.over:
                return
            sent = connection.link.volatile(kind, encode_value(answer), self._clock.monotonic())
            self._delivery.touch(connection)
            if sent:
                return
            await asyncio.sleep(0.02)

    async def _may_join(self, connection: ClientConnection, group: str) -> bool:
        hook, identity = self._config.may_join, connection.identity
        if hook is None or identity is None:
            return False
        try:
            async with asyncio.timeout(AUTH_TIMEOUT):
                return bool(await call_hook(self._threads, hook, identity, group))
        except Exception as exc:  # a user's function may raise anything
            drop_older_raises(exc)
            logger.error("may_join raised %r", exc)
            return False

    # Bye.

    async def _bye(self, sid: str) -> None:
        """Close the session, with a few tries. If all fail, `release_strays` detaches it, and it expires by its TTL."""
        for pause in BYE_PAUSES:
            try:
                await self._delivery.write_acks(sid)
                await self._sessions.close(sid, "closed")
            except StoreError as exc:
                logger.debug("cannot close session %s yet: %s", sid, exc)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            else:
                return

    async def close(self) -> None:
        await self._background.close(0.0)
        self._threads.close()


def hashed(secret: str) -> str:
    """The hash of a secret, which is what Redis stores."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _connection_id() -> str:
    return secrets.token_hex(6)
