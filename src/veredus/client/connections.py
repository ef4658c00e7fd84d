"""One store per event loop: connections belong to the loop and the process that opened them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence

from veredus import forks
from veredus.client.client import Client, SendMiddleware
from veredus.client.desk import Desk
from veredus.clock import SYSTEM, Clock
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.store.redis import Redis
from veredus.store.store import Store


class Connections:
    """Clients by event loop. Nothing is opened before it is used; a forked child starts with none."""

    def __init__(
        self,
        open_redis: Callable[[], Redis],
        *,
        max_payload: int,
        patience: float,
        archive: ArchiveLimits = ASYNQS,
        clock: Clock = SYSTEM,
        middlewares: Sequence[SendMiddleware] = (),
        confirms: bool = True,
        unserved: str = "ignore",
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
        self._is_limited = is_limited
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()
        forks.hold(self)
        self.desk: Desk | None = None
        """Where the handles of these clients' tasks ask."""

    def forked(self) -> None:
        forks.leave(*self._clients.items())
        self._clients = weakref.WeakKeyDictionary()

    def client(self) -> Client:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            store = Store(self._open_redis(), patience=self._patience, archive=self._archive)
            client = self._clients[loop] = Client(
                store,
                max_payload=self._max_payload,
                clock=self._clock,
                desk=self.desk,
                middlewares=self._middlewares,
                confirms=self._confirms,
                unserved=self._unserved,
                is_limited=self._is_limited,
            )
        return client

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Those that have opened something."""
        return list(self._clients)

    async def close(self) -> None:
        """Close what this loop opened."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
