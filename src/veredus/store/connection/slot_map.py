"""The map from slots to nodes of a cluster, kept up to date by the nodes' replies."""

from __future__ import annotations

import asyncio
import binascii
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from veredus.errors import ConnectionLost, StoreError
from veredus.process import forks
from veredus.store.connection import error_replies

SLOTS = 16384
REFRESH = 1.0
"""Minimum seconds between two reads of the whole map that only a moved slot caused."""

Endpoint = tuple[str, int]


def slot_of(key: str) -> int:
    """The slot of a key: of the part in braces, if there is one."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode("utf-8", "surrogateescape"), 0) % SLOTS


class SlotMap:
    """`ask` returns a node's answer to CLUSTER SLOTS, or raises StoreError or TimeoutError."""

    def __init__(self, hosts: Sequence[Endpoint], ask: Callable[[Endpoint], Awaitable[Any]]) -> None:
        self._hosts = hosts
        self._ask = ask
        self._owners: list[Endpoint | None] = [None] * SLOTS
        self._seen: dict[Endpoint, None] = {}
        self._failed_at: dict[Endpoint, float] = {}
        self._behind: dict[Endpoint, float] = {}
        """Which node reported a failed node, and when."""
        self._learning: asyncio.Task[None] | None = None
        self._learned_at = -REFRESH
        forks.register(self)

    def forked(self) -> None:
        """After a fork: reads the map again."""
        forks.leak(self._learning)
        self._learning = None

    def owner(self, slot: int) -> Endpoint | None:
        """The node of a slot, as far as known."""
        return self._owners[slot]

    async def find(self, slot: int) -> Endpoint:
        """The same; asks the nodes if it is unknown."""
        endpoint = self._owners[slot]
        if endpoint is None:
            await error_replies.shared(self._learn(), "closed while the cluster was asked for its slots")
            endpoint = self._owners[slot]
        if endpoint is None:
            raise ConnectionLost(f"no node of the cluster has slot {slot}")
        return endpoint

    def moved(self, slot: int, endpoint: Endpoint) -> None:
        """A node said that this slot has moved. Others may have moved with it: read the whole map in the background."""
        self._owners[slot] = endpoint
        self._seen.setdefault(endpoint)
        if time.monotonic() - self._learned_at >= REFRESH:
            self._learned_at = time.monotonic()
            self._learn()

    def doubt(self, endpoint: Endpoint) -> None:
        """This node is gone: before the next call, ask the others who has its slots."""
        self._failed_at[endpoint] = time.monotonic()
        self._owners = [None if owner == endpoint else owner for owner in self._owners]

    def is_doubted(self, endpoint: Endpoint) -> bool:
        return endpoint in self._failed_at

    def trust(self, endpoint: Endpoint) -> None:
        """The node answers again."""
        self._failed_at.pop(endpoint, None)

    def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()

    def _learn(self) -> asyncio.Task[None]:
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._ask_around())
            self._learning.add_done_callback(_looked_at)
        return self._learning

    async def _ask_around(self) -> None:
        """Nodes that failed last, or seem to have an old map, are asked last."""
        problems: list[str] = []
        known = dict.fromkeys([*self._seen, *self._hosts])
        for endpoint in sorted(known, key=lambda one: (self._failed_at.get(one, 0.0), self._behind.get(one, 0.0))):
            try:
                rows = await self._ask(endpoint)
            except (StoreError, TimeoutError) as exc:
                self._failed_at[endpoint] = time.monotonic()
                problems.append(f"{endpoint[0]}:{endpoint[1]}: {exc or 'no answer in time'}")
                continue
            self._take(endpoint, rows)
            return
        raise ConnectionLost("no node of the cluster answers: " + "; ".join(problems))

    def _take(self, source: Endpoint, rows: Any) -> None:
        owners: list[Endpoint | None] = [None] * SLOTS
        for first, last, master, *_ in rows:
            host = master[0].decode() if master[0] else ""
            endpoint = (host if host not in ("", "?") else source[0], int(master[1]))
            owners[first : last + 1] = [endpoint] * (last - first + 1)
        self._owners = owners
        self._seen = dict.fromkeys(owner for owner in owners if owner is not None)
        self._learned_at = time.monotonic()
        self._failed_at = {one: at for one, at in self._failed_at.items() if one in self._seen or one in self._hosts}
        self._failed_at.pop(source, None)
        if any(one in self._failed_at for one in self._seen):
            self._behind[source] = time.monotonic()
        else:
            self._behind.clear()


def _looked_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # mark as seen: all waiting callers got it
