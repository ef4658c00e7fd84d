"""`@app.on_connect` and `@app.on_disconnect`: functions of the user's that are called when clients come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.gateway.auth import Identity, call_hook
from veredus.gateway.errands import Errands
from veredus.model.failure import drop_older_raises
from veredus.worker.complaints import Complaints
from veredus.worker.executors.threads import ThreadPool

if TYPE_CHECKING:
    from veredus.gateway.config import GatewayConfig
    from veredus.gateway.connection import Connection

HOOK_TIMEOUT = 10.0
"""Seconds that one hook may take."""
WAITING = 10_000
"""Calls that wait for their turn; beyond them hooks are left out, so that slow ones cannot fill the memory."""
LAST_HOOKS = 5.0
"""Seconds for which a stop waits for hooks."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connection of a client, as hooks see it."""

    session: str
    identity: Identity
    result: str
    """new, resumed, or reset: what its welcome said."""
    transport: str
    """websocket or quic"""
    address: str
    """The client's, without its port."""
    node: str
    """The gateway that has the connection."""
    generation: int
    """1 for the first connection of a session, and higher for each later one."""

    @property
    def user(self) -> str:
        return self.identity.user


class Reason(NamedTuple):
    """Why a connection ended: a close code and a text; `str()` has both."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}".rstrip()


OnConnect = Callable[[Client], Awaitable[None] | None]
OnDisconnect = Callable[[Client, Reason], Awaitable[None] | None]


class Lifecycle:
    """Hooks delay nobody: as many run at once as there are hook threads. Those of a connection's end begin when those
    of its beginning have ended."""

    def __init__(self, config: GatewayConfig, node: str, complaints: Complaints) -> None:
        self._on_connect = config.on_connect
        self._on_disconnect = config.on_disconnect
        self._node = node
        self._complaints = complaints
        self._errands = Errands("hooks of connections")
        self._threads = ThreadPool(config.hook_threads, lambda: None)
        self._waiting = 0

    def connected(self, connection: Connection, identity: Identity, result: str) -> None:
        """The welcome is on its way."""
        if not (self._on_connect or self._on_disconnect):
            return
        transport = connection.transport
        connection.client = Client(
            connection.sid, identity, result, transport.kind, transport.host, self._node, connection.generation
        )
        if self._on_connect:
            connection.told = asyncio.Event()
            if not self._start("on_connect", self._on_connect, (connection.client,), None, connection.told):
                connection.told.set()

    def left(self, connection: Connection) -> None:
        """The connection is gone; if it never had a session, nobody was told of it."""
        client, connection.client = connection.client, None
        if client is not None and self._on_disconnect:
            reason = Reason(*(connection.ended or (0, "")))
            self._start("on_disconnect", self._on_disconnect, (client, reason), connection.told, None)

    def _start(
        self,
        name: str,
        hooks: Sequence[Callable[..., Any]],
        arguments: tuple[Any, ...],
        after: asyncio.Event | None,
        done: asyncio.Event | None,
    ) -> bool:
        if self._waiting >= WAITING:
            self._complaints.say(("hooks", name), f"{name} hooks are too slow: {WAITING:,} wait, more are left out")
            return False
        self._waiting += 1
        self._errands.start(self._run(name, hooks, arguments, after, done))
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
        except Exception as exc:
            function = getattr(hook, "__qualname__", repr(hook))
            if limit.expired():
                self._complaints.say(("hooks", name, hook), f"{name}: {function} takes longer than {HOOK_TIMEOUT:g} s")
                return
            drop_older_raises(exc)
            self._complaints.say(
                ("hooks", name, hook, type(exc)), f"{name}: {function} raised {exc!r}", logging.ERROR, exc
            )

    async def close(self) -> None:
        """Those of the last connections may still run for a while."""
        await self._errands.close(LAST_HOOKS)
        self._threads.close()
