"""Clients for synchronous callers, who send in their own thread."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from veredus.client.call import Call
from veredus.client.client import Client
from veredus.client.handle import Handle
from veredus.process import forks
from veredus.store.connection.own_loop import OwnLoop
from veredus.store.connection.redis import Redis

MOST = 8
"""Clients, and so connections to each server. More callers than that at once share one that sends in batches."""


class BlockingClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = OwnLoop()
        # Closed with the app, too. Not at the exit of the process: a fork would close what it shares with its parent.
        self._end = weakref.finalize(self, _end, self._loop, client.store.redis)
        self._end.atexit = False

    def send(self, call: Call[Any]) -> Handle[Any]:
        return self._loop.run(self._client.enqueue(call), self._client.store.at_hand)

    def close(self) -> None:
        self._end.detach()
        self._loop.close(self._client.close())


def _end(loop: OwnLoop, redis: Redis) -> None:
    loop.close(redis.close())


class BlockingClients:
    """Each call takes one that nobody uses. Taking and giving back are single steps of a deque: without a lock, because
    a handler of signals may send while the thread that it interrupts is sending."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self._free: deque[BlockingClient | None] = deque([None] * MOST)
        """None for one that was not made yet: those are taken last."""
        self._closes = 0
        forks.register(self)

    def forked(self) -> None:
        """In a fork: they are the parent's."""
        forks.leak(*self._free)
        self._free.clear()
        self._free.extend([None] * MOST)

    def send(self, call: Call[Any]) -> Handle[Any] | None:
        """None if all of them are in use."""
        try:
            client = self._free.pop()
        except IndexError:
            return None
        closes = self._closes
        try:
            if client is None:
                client = BlockingClient(self._make_client())
            handle = client.send(call)
        except Exception:
            self._give_back(client, closes)
            raise
        except BaseException:  # interrupted: a reply may still come
            self._give_back(client, -1)
            raise
        self._give_back(client, closes)
        return handle

    def _give_back(self, client: BlockingClient | None, closes: int) -> None:
        if client is not None and closes != self._closes:
            client.close()
            client = None
        (self._free.appendleft if client is None else self._free.append)(client)

    def close(self) -> None:
        """Close the clients; those in use follow when their call ends. The next calls make others."""
        self._closes += 1
        for _ in range(MOST):
            with contextlib.suppress(IndexError):
                self._give_back(self._free.pop(), -1)
