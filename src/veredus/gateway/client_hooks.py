"""ClientHooks: calls the user's `@app.on_connect` and `@app.on_disconnect` functions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.gateway.auth import Identity, call_hook
from veredus.gateway.background import BackgroundTasks
from veredus.handlers.executors.threads import ThreadPool
from veredus.model.failure import drop_older_raises
from veredus.process.outage_log import OutageLog

if TYPE_CHECKING:
    from veredus.gateway.client_connection import ClientConnection
    from veredus.gateway.config import GatewayConfig

HOOK_TIMEOUT = 10.0
"""Seconds that one hook may take."""
MAX_WAITING = 10_000
"""Calls that may wait. Further calls are skipped, so that slow hooks cannot fill the memory."""
STOP_TIMEOUT = 5.0
"""Seconds for which a stop waits for hooks."""


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """One connection of a client, as passed to hooks."""

    session: str
    identity: Identity
    result: str
    """The result in its welcome: new, resumed or reset."""
    transport: str
    """websocket or quic"""
    address: str
    """The client's IP address."""
    node: str
    """The gateway that has the connection."""
    generation: int
    """1 for the first connection of a session; each later one has a higher number."""

    @property
    def user(self) -> str:
        return self.identity.user


class CloseReason(NamedTuple):
    """Why a connection ended: a close code and a text; `str()` has both."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}".rstrip()


OnConnect = Callable[[ConnectedClient], Awaitable[None] | None]
OnDisconnect = Callable[[ConnectedClient, CloseReason], Awaitable[None] | None]


class ClientHooks:
    """Hooks run in the background, as many at once as there are hook threads. The on_disconnect hooks of a connection
    start after its on_connect hooks have ended."""

    def __init__(self, config: GatewayConfig, node: str, outages: OutageLog) -> None:
        self._on_connect = config.on_connect
        self._on_disconnect = config.on_disconnect
        self._node = node
        self._outages = outages
        self._background = BackgroundTasks("hooks of connections")
        self._threads = ThreadPool(config.hook_threads, lambda: None)
        self._waiting = 0

    def connected(self, connection: ClientConnection, identity: Identity, result: str) -> None:
        """The client has been welcomed."""
        if not (self._on_connect or self._on_disconnect):
            return
        transport = connection.transport
        connection.client = ConnectedClient(
            connection.sid, identity, result, transport.kind, transport.host, self._node, connection.generation
        )
        if self._on_connect:
            connection.connect_hooks_done = asyncio.Event()
            if not self._start(
                "on_connect", self._on_connect, (connection.client,), None, connection.connect_hooks_done
            ):
                connection.connect_hooks_done.set()

    def left(self, connection: ClientConnection) -> None:
        """The connection has closed. Hooks are called only if it had a session."""
        client, connection.client = connection.client, None
        if client is not None and self._on_disconnect:
            reason = CloseReason(*(connection.ended or (0, "")))
            self._start("on_disconnect", self._on_disconnect, (client, reason), connection.connect_hooks_done, None)

    def _start(
        self,
        name: str,
        hooks: Sequence[Callable[..., Any]],
        arguments: tuple[Any, ...],
        after: asyncio.Event | None,
        done: asyncio.Event | None,
    ) -> bool:
        if self._waiting >= MAX_WAITING:
            self._outages.log(
                ("hooks", name), f"{name} hooks are too slow: {MAX_WAITING:,} calls wait, more are skipped"
            )
            return False
        self._waiting += 1
        self._background.start(self._run(name, hooks, arguments, after, done))
        return True

    async def _run(
        self,
        name: str,
        hooks: Sequence[Callable[..., Any]],
        arguments: tuple[Any, ...],
        after: asyncio.Event | None,
        done: asyncio.Event | None,
    ) -> None:
        try:
            if after is not None:
                await after.wait()
            for hook in hooks:
                async with self._threads.slot(None):
                    await self._call(name, hook, arguments)
        finally:
            self._waiting -= 1
            if done is not None:
                done.set()

    async def _call(self, name: str, hook: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            async with asyncio.timeout(HOOK_TIMEOUT) as limit:
                await call_hook(self._threads, hook, *arguments)
        except Exception as exc:  # a user's function may raise anything
            function = getattr(hook, "__qualname__", repr(hook))
            if limit.expired():
                self._outages.log(("hooks", name, hook), f"{name}: {function} takes longer than {HOOK_TIMEOUT:g} s")
                return
            drop_older_raises(exc)
            self._outages.log(
                ("hooks", name, hook, type(exc)), f"{name}: {function} raised {exc!r}", logging.ERROR, exc
            )

    async def close(self) -> None:
        """Give the hooks of the last connections time to end."""
        await self._background.close(STOP_TIMEOUT)
        self._threads.close()
