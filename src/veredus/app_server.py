"""AppServer: the server that an app uses, and the connections to it."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from veredus.client.blocking_portal import BlockingPortal
from veredus.clock import SYSTEM, Clock
from veredus.model.archive import ArchiveLimits

if TYPE_CHECKING:
    from veredus.client.call import Call
    from veredus.client.client import Client, SendMiddleware
    from veredus.client.connections import Connections
    from veredus.client.handle import Handle
    from veredus.client.handle_queries import HandleQueries
    from veredus.store.connection.redis import Redis

T = TypeVar("T")

logger = logging.getLogger("veredus")

Fact = dict[str, Any]
"""Plain JSON values."""


class AppStage(Protocol):
    """Replaces the server and the clock while an app is being tested."""

    clock: Clock

    def open_redis(self, name: str) -> Redis: ...

    def describe(self) -> Fact:
        """Everything that a handler's process needs to use the same stage."""
        ...

    def heard(self, fact: Fact) -> None:
        """What the app in a handler's process reported."""
        ...


class Declared(Protocol):
    """What the connections of an app need to know about what it declares."""

    @property
    def send_middlewares(self) -> Sequence[SendMiddleware]: ...

    @property
    def max_lengths(self) -> Mapping[str, int]: ...

    def load(self) -> None: ...

    def is_limited(self, task_type: str, queue: str) -> bool: ...

    def function_of(self, task_type: str) -> Callable[..., Any] | None: ...


class AppServer:
    """Where an app finds Redis. Connects at the first use, once per event loop; a test puts its stage in its place."""

    def __init__(
        self,
        app: Declared,
        url: str | None,
        *,
        timeout: float,
        patience: float,
        archive: ArchiveLimits,
        max_payload: int,
        queue: str,
        unserved: str,
    ) -> None:
        self._app = app
        self._url = url
        self._timeout = timeout
        self._patience = patience
        self._archive = archive
        self._max_payload = max_payload
        self._queue = queue
        self._unserved = unserved
        self.portal = BlockingPortal()
        """The event loop of the `_sync` methods."""
        self.stage: AppStage | None = None
        self._connections: Connections | None = None
        self._outside: Connections | None = None
        """The connections from before the stage was entered."""
        if url is not None:
            _check_url(url)

    @property
    def url(self) -> str | None:
        """The address of Redis; None means the embedded server."""
        return self._url or os.environ.get("VEREDUS_REDIS_URL") or os.environ.get("REDIS_URL") or None

    def describe(self) -> str:
        """Which server it is, without connecting: for people."""
        url = self.url
        if url is not None:
            from veredus.store.connection.address import parse_url

            named = (name for name in ("VEREDUS_REDIS_URL", "REDIS_URL") if os.environ.get(name) == url)
            source = "" if self._url else f" ({next(named, 'environment')})"
            return f"{parse_url(url).describe()}{source}"
        from veredus.embedded import settings

        project = None if os.environ.get("VEREDUS_DATA", "").strip() else settings.project_path()
        whose = "" if project is None else f" (of the project {settings.short(project)})"
        return f"embedded, data in {settings.short(settings.data_path(None))}{whose}"

    def use(self, url: str) -> None:
        """Use another server; call it before anything is sent."""
        _check_url(url)
        self._url = url

    @property
    def clock(self) -> Clock:
        return SYSTEM if self.stage is None else self.stage.clock

    def open_redis(self, name: str = "veredus") -> Redis:
        """A Redis client that connects at its first call."""
        from veredus.store.store import connect

        if self.stage is not None:
            return self.stage.open_redis(name)
        url = self.url
        if url is not None:
            return connect(url, timeout=self._timeout, name=name)
        return _embedded_redis(self._timeout, name)

    def client(self) -> Client:
        """The client of the running event loop."""
        return self._all_connections().client()

    def send_here(self, call: Call[T]) -> Handle[T] | None:
        """Send in the calling thread; None if that needs an event loop."""
        return self._all_connections().send_here(call)

    def queries(self) -> HandleQueries:
        """Answers the questions of handles."""
        return self._all_connections().queries

    def _all_connections(self) -> Connections:
        if self._connections is None:
            from veredus.client.connections import Connections

            self._app.load()
            self._connections = Connections(
                self.open_redis,
                self._app.function_of,
                self.portal,
                queue=self._queue,
                max_payload=self._max_payload,
                patience=self._patience,
                archive=self._archive,
                clock=self.clock,
                middlewares=self._app.send_middlewares,
                confirms=self.stage is None,
                unserved=self._unserved if self.stage is None else "ignore",
                is_limited=self._app.is_limited,
                max_lengths=self._app.max_lengths,
            )
            if self.url is not None and self.stage is None:
                from veredus.store.connection.address import parse_url

                _log_server(parse_url(self.url).describe())
        return self._connections

    async def close(self) -> None:
        """Close the connections of this event loop. The next use opens them again."""
        if self._connections is not None:
            await self._connections.close()

    def close_sync(self) -> None:
        """Close the connections of the `_sync` methods, with their event loop and thread."""
        if self._connections is not None:
            self._connections.close_blocking()
        if self.portal.is_running:
            self.portal.run(self.close())
            self.portal.close()

    # Tests.

    def enter(self, stage: AppStage) -> None:
        """From now on, use the server and the clock of a test."""
        self._outside, self._connections = self._connections, None
        self.stage = stage

    async def leave(self) -> None:
        """Close the connections to the test's server, and use the real one again."""
        connections = self._connections
        try:
            if connections is not None:
                await connections.close()
                if connections.loops:  # those of synchronous callers
                    await asyncio.to_thread(self.portal.run, connections.close())
        finally:
            self._connections, self._outside, self.stage = self._outside, None, None


def _check_url(url: str) -> None:
    from veredus.store.connection.address import parse_url

    parse_url(url)


def _embedded_redis(timeout: float, name: str) -> Redis:
    """The embedded server, started on demand, and started again if it was stopped between two connections."""
    from veredus import embedded
    from veredus.embedded import settings
    from veredus.store.connection.address import Address
    from veredus.store.connection.redis import SingleServer

    data = settings.data_path(None)  # of the folder that the program is in now, wherever it goes

    async def resolve() -> str:
        server = await asyncio.to_thread(embedded.ensure, data)
        _log_embedded(server.describe())
        return server.socket

    return SingleServer(Address(kind="unix", path="(embedded)"), resolve, timeout, name)


@functools.cache
def _log_server(description: str) -> None:
    logger.info("using the server at %s", description)


@functools.cache
def _log_embedded(description: str) -> None:
    """A warning on purpose: a forgotten variable in production must not silently start a private queue."""
    logger.warning("neither VEREDUS_REDIS_URL nor REDIS_URL is set: using the %s", description)
