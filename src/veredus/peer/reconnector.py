"""Reconnector: keeps one session connected: opens transports, waits between attempts, moves bytes, drives the timer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from veredus.errors import ConfigError, SessionClosed
from veredus.link.session import ClientEvent, ClientLink, Ended, Going, TokenExpiring, Welcomed
from veredus.link.transports.base import ABNORMAL, Transport
from veredus.model.frames import CloseCode, resumable
from veredus.peer.addresses import GatewayAddress, Verify, open_transport, parse_address
from veredus.peer.config import PeerConfig
from veredus.peer.items import Disconnected, Event, GoingAway, Retrying

logger = logging.getLogger("veredus.peer")

Token = str | Callable[[], str | Awaitable[str]]
STEADY = 2.0  # seconds after which a connection resets the count of failures
LATE_ATTACH = 60.0
"""Seconds in which a gateway may still attach a hello that this peer no longer waits for."""


class ConnectionEnd(NamedTuple):
    """How a connection, or an attempt to connect, ended."""

    code: int
    reason: str
    retry_after: float = 0.0
    at_once: bool = False


class Reconnector:
    """One per peer. It is the handler of all its transports."""

    def __init__(
        self,
        link: ClientLink,
        addresses: Sequence[GatewayAddress],
        config: PeerConfig,
        *,
        token: Token,
        verify: Verify,
        deliver: Callable[[ClientEvent], None],
        announce: Callable[[Event], None],
    ) -> None:
        self._link = link
        self._addresses = addresses
        self._config = config
        self._token = token
        self._verify = verify
        self._deliver = deliver
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._gone: asyncio.Future[ConnectionEnd] | None = None
        self._unwelcomed: deque[float] = deque(maxlen=16)  # when hellos ended without a welcome
        self._welcomed = False  # on this connection
        self._attempts = 0
        self._next_address: GatewayAddress | None = None
        self._fresh_token = ""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._moving: asyncio.TimerHandle | None = None
        self._flushing = False
        self._refreshing: asyncio.Task[None] | None = None
        self._leaving: Transport | None = None
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._stopped = False
        self.connections = 0
        self.current = addresses[0]
        """The address of this attempt."""

    async def run(self) -> SessionClosed | None:
        """Reconnect until the session ends. Returns the reason, or None after a stop."""
        failures = 0
        without_since = self._loop.time()
        while True:
            began = self._loop.time()
            gone = await self._attempt()
            if self._is_stopped():
                return None
            lived = self._welcomed and self._loop.time() - began > STEADY
            if self._welcomed:
                without_since = self._loop.time()
                self._announce(Disconnected(gone.code, gone.reason))
            if not resumable(gone.code) and not self._superseded_by_itself(gone.code):
                return SessionClosed(f"{gone.code} {gone.reason or _name(gone.code)}", code=gone.code)
            if gone.code == CloseCode.TOKEN_EXPIRED and isinstance(self._token, str):
                text = f"{gone.code} the token has expired; pass a function as token to refresh it"
                return SessionClosed(text, code=gone.code)
            if self._loop.time() - without_since > self._config.give_up_after:
                return SessionClosed(f"no gateway for {self._config.give_up_after:g} s: {gone.reason}", code=gone.code)
            self._attempts += 1
            failures = 0 if lived or gone.at_once else failures
            delay = 0.0 if gone.at_once else self._config.backoff(failures, random.random(), gone.retry_after)
            failures += 1
            self._announce(Retrying(delay, gone.reason))
            await asyncio.sleep(delay)

    def _is_stopped(self) -> bool:
        return self._stopped

    def _superseded_by_itself(self, code: int) -> bool:
        """A slow gateway may attach a hello that this peer no longer waits for, and so supersede the next connection.
        Each such hello explains one close; a further one means that another client has the session.
        """
        if code != CloseCode.SUPERSEDED:
            return False
        while self._unwelcomed and self._unwelcomed[0] < self._loop.time() - LATE_ATTACH:
            self._unwelcomed.popleft()
        if not self._unwelcomed:
            return False
        self._unwelcomed.popleft()
        return True

    async def _attempt(self) -> ConnectionEnd:
        self._welcomed = False
        try:
            self._fresh_token = await self._fetch_token()
        except Exception as exc:  # a user's function may raise anything
            logger.warning("the token function failed: %r", exc)
            return ConnectionEnd(ABNORMAL, f"no token: {exc!r}")
        address = self.current = self._next_address or self._addresses[self._attempts % len(self._addresses)]
        self._next_address = None
        self._gone = self._loop.create_future()
        self.connections += 1
        deadline = self._loop.call_later(self._config.connect_timeout, self._not_welcomed)
        try:
            await open_transport(address, self, self._verify, self._config.connect_timeout)
            return await self._gone
        except OSError as exc:
            return ConnectionEnd(ABNORMAL, f"{address.url}: {exc}")
        finally:
            deadline.cancel()
            self._release()

    async def _fetch_token(self) -> str:
        if isinstance(self._token, str):
            return self._token
        given = self._token()
        token = await given if inspect.isawaitable(given) else given
        if not isinstance(token, str):
            raise ConfigError("token", token, "a string")
        return token

    def _not_welcomed(self) -> None:
        if self._link.state != "open":
            self._drop(ConnectionEnd(CloseCode.NO_PONG, "no welcome in time"))

    # ---- the handler of the transports

    def opened(self, transport: Transport) -> None:
        if self._gone is None or self._gone.done():  # too late
            transport.abort()
            return
        self._transport = transport
        self._link.connected(
            self._loop.time(),
            token=self._fresh_token,
            encoding=transport.encoding,
            whole_messages=transport.kind == "websocket",
        )
        self.flush()
        self._arm()

    def received(self, transport: Transport, data: bytes) -> None:
        if transport is self._transport:
            self._handle(self._link.receive(data, self._loop.time()))

    def writable(self, transport: Transport) -> None:
        self.flush()

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        if transport is self._leaving and not self._left.done():
            self._left.set_result(None)
        if transport is self._transport:
            self._lost(ConnectionEnd(code, reason))

    def _handle(self, events: Sequence[ClientEvent]) -> None:
        for event in events:
            if type(event) is Ended:
                self.flush()
                self._drop(ConnectionEnd(event.code, event.reason, event.retry_after_ms / 1000))
                return
            if type(event) is Going:
                self._go(event)
            elif type(event) is TokenExpiring:
                self._refresh()
            else:
                self._welcomed |= type(event) is Welcomed
                self._deliver(event)
        self.flush()
        self._arm()

    def _go(self, event: Going) -> None:
        within = event.reconnect_within_ms / 1000
        self._announce(GoingAway(within, event.reason))
        if event.hint:
            try:
                self._next_address = parse_address(event.hint)
            except ConfigError:
                logger.warning("the gateway sent %r, which is not an address", event.hint)
        if self._moving is None:
            self._moving = self._loop.call_later(random.random() * within, self._move)

    def _move(self) -> None:
        self._moving = None
        self._drop(ConnectionEnd(CloseCode.GOING_AWAY, "moving", at_once=True))

    def _refresh(self) -> None:
        if not isinstance(self._token, str) and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = self._loop.create_task(self._authenticate())

    async def _authenticate(self) -> None:
        try:
            token = await self._fetch_token()
        except Exception as exc:  # a user's function may raise anything
            logger.warning("the token function failed: %r", exc)
            return
        self._link.authenticate(token)
        self.flush()

    # ---- bytes and ticks

    def flush(self) -> None:
        """Send the link's output."""
        self._flushing = False
        transport, link = self._transport, self._link
        while transport is not None and link.has_output:
            transport.send(link.take_output())

    def flush_soon(self) -> None:
        """Flush once per turn of the loop, so that many requests and acks share a write."""
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush_and_arm)

    def _flush_and_arm(self) -> None:
        self.flush()
        self._arm()

    def arm_before(self, at: float) -> None:
        """Ensure a tick by this time."""
        if at < self._timer_at and self._transport is not None:
            self._arm()

    def _arm(self) -> None:
        if self._transport is None:
            return
        due = self._link.deadline()
        if self._timer is not None:
            if self._timer_at <= due:  # it is set again when it fires
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._loop.time()
        if self._transport is not None and self._link.deadline() <= now:
            self._handle(self._link.tick(now))
        self._arm()

    # ---- ends

    def cut(self) -> None:
        """Break the connection like a network failure."""
        if self._transport is not None:
            self._transport.abort()

    def _drop(self, gone: ConnectionEnd) -> None:
        """End this connection without waiting for the other end."""
        transport = self._transport
        self._lost(gone)
        if transport is not None:
            transport.close(gone.code, gone.reason[:100])

    def _lost(self, gone: ConnectionEnd) -> None:
        if self._transport is not None:
            if not self._welcomed:
                self._unwelcomed.append(self._loop.time())
            self._transport = None
            self._link.disconnected(self._loop.time())
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(gone)

    def _release(self) -> None:
        if self._transport is not None:
            self._drop(ConnectionEnd(CloseCode.GOING_AWAY, "stopped"))
        self._gone = None
        for timer in (self._timer, self._moving):
            if timer is not None:
                timer.cancel()
        self._timer, self._moving, self._timer_at = None, None, float("inf")

    async def stop(self, *, bye: bool) -> None:
        """Disconnect. With `bye` the session ends, otherwise it can be resumed."""
        self._stopped = True
        transport = self._transport
        if transport is not None and self._link.state == "open":
            if bye:
                self._link.bye()
            self.flush()
            self._lost(ConnectionEnd(1000, "closed"))
            transport.close(1000, "bye" if bye else "detached")
            if not transport.closed:
                self._leaving = transport
                await asyncio.wait({self._left}, timeout=self._config.close_timeout)
        if self._refreshing is not None:
            self._refreshing.cancel()


def _name(code: int) -> str:
    try:
        return CloseCode(code).name.lower()
    except ValueError:
        return "closed"
