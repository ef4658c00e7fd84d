"""One store per event loop, because connections belong to the loop and the process that opened them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from veredus.client.blocking_clients import BlockingClients
from veredus.client.blocking_portal import BlockingPortal
from veredus.client.call import Call
from veredus.client.client import Client, SendMiddleware
from veredus.client.handle import Handle
from veredus.client.handle_queries import Find, HandleQueries
from veredus.clock import SYSTEM, Clock
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.process import forks
from veredus.store.connection.address import Kind
from veredus.store.connection.redis import Redis
from veredus.store.store import Store


class Connections:
    """Clients by event loop. A client connects at its first use. A forked child starts with none."""

    def __init__(
        self,
        open_redis: Callable[[], Redis],
        find: Find,
        portal: BlockingPortal,
        *,
        queue: str,
        max_payload: int,
        patience: float,
        archive: ArchiveLimits = ASYNQS,
        clock: Clock = SYSTEM,
        middlewares: Sequence[SendMiddleware] = (),
        confirms: bool = True,
        unserved: str = "ignore",
        max_lengths: Mapping[str, int] = MappingProxyType({}),
        is_limited: Callable[[str, str], bool] = lambda task_type, queue: False,
    ) -> None:
        self._open_redis = open_redis
        self._max_payload = max_payload
        self._patience = patience
        self._archive = archive
        self._clock = clock
        self._middlewares = middlewares
        self._confirms = confirms
        self._unserved = unserved
        self._max_lengths = max_lengths
        self._is_limited = is_limited
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()
        self._kind: Kind | None = None
        self._blocking = BlockingClients(self._make_client)
        forks.register(self)
        self.queries = HandleQueries(self.client, portal, find, clock, queue)
        """Answers the questions of these clients' handles."""

    def forked(self) -> None:
        forks.leak(*self._clients.items())
        self._clients = weakref.WeakKeyDictionary()

    def client(self) -> Client:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make_client()
        return client

    def _make_client(self) -> Client:
        return Client(
            Store(self._open_redis(), patience=self._patience, archive=self._archive, max_lengths=self._max_lengths),
            max_payload=self._max_payload,
            clock=self._clock,
            queries=self.queries,
            middlewares=self._middlewares,
            confirms=self._confirms,
            unserved=self._unserved,
            is_limited=self._is_limited,
        )

    def send_here(self, call: Call[Any]) -> Handle[Any] | None:
        """Send in the calling thread, without its waiting for another one. None if that is not possible: in a thread
        with a running loop, with middlewares, which may belong to a loop, in a test, behind Sentinel, where a loop must
        always listen for another master, for a call that needs more than its own step in Redis, and when very many
        threads send at once."""
        if self._middlewares or not self._confirms or asyncio._get_running_loop() is not None:
            return None
        if self._kind is None:
            self._kind = self._open_redis().address.kind
        if self._kind == "sentinel":
            return None
        options = call.options
        if options.queue in self._max_lengths:
            return None
        if options.durability != "any" or (self._unserved != "ignore" and self._may_be_unserved(call)):
            return None
        return self._blocking.send(call)

    def _may_be_unserved(self, call: Call[Any]) -> bool:
        options = call.options
        if options.group is not None or options.order_key is not None or options.limit_key is not None:
            return True
        return self._is_limited(call.type, options.queue)

    def close_blocking(self) -> None:
        """Close the connections of synchronous callers."""
        self._blocking.close()

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The clients that have opened a connection."""
        return list(self._clients)

    async def close(self) -> None:
        """Close the connections of this loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
