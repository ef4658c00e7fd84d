"""Which node of a cluster has which slot, kept up to date by what the nodes answer."""

from __future__ import annotations

import asyncio
import binascii
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from veredus import forks
from veredus.errors import ConnectionLost, StoreError
from veredus.store import faults

SLOTS = 16384
REFRESH = 1.0
"""Seconds at least between two looks at the whole map that only a moved slot was the reason for."""

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
    """`ask` brings the answer of one node to CLUSTER SLOTS, or raises StoreError or TimeoutError."""

    def __init__(self, hosts: Sequence[Endpoint], ask: Callable[[Endpoint], Awaitable[Any]]) -> None:
        self._hosts = hosts
        self._ask = ask
        self._owners: list[Endpoint | None] = [None] * SLOTS
        self._seen: dict[Endpoint, None] = {}
        self._failed_at: dict[Endpoint, float] = {}
        self._behind: dict[Endpoint, float] = {}
        """Who named a node that had failed, and when."""
        self._learning: asyncio.Task[None] | None = None
        self._learned_at = -REFRESH
        forks.hold(self)

    def forked(self) -> None:
        """In a fork: it asks for itself."""
        forks.leave(self._learning)
        self._learning = None

    def owner(self, slot: int) -> Endpoint | None:
        """As far as known."""
        return self._owners[slot]

    async def find(self, slot: int) -> Endpoint:
        """The same, asking the nodes if it is not known."""
        endpoint = self._owners[slot]
        if endpoint is None:
            await faults.shared(self._learn(), "closed while the cluster was asked for its slots")
            endpoint = self._owners[slot]
        if endpoint is None:
            raise ConnectionLost(f"no node of the cluster has slot {slot}")
        return endpoint

    def moved(self, slot: int, endpoint: Endpoint) -> None:
        """A node said that this slot is there now. Others may have moved with it: look at them all, meanwhile."""
        self._owners[slot] = endpoint
        self._seen.setdefault(endpoint)
        if time.monotonic() - self._learned_at >= REFRESH:
            self._learned_at = time.monotonic()
            self._learn()

    def doubt(self, endpoint: Endpoint) -> None:
        """This node is gone: ask the others who has its slots before the next call."""
        self._failed_at[endpoint] = time.monotonic()
        self._owners = [None if owner == endpoint else owner for owner in self._owners]

    def is_doubted(self, endpoint: Endpoint) -> bool:
        return endpoint in self._failed_at

    def trust(self, endpoint: Endpoint) -> None:
        """It answers again."""
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
        """Those that failed last, or seem to be behind the others, are asked last."""
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
        task.exception()  # whoever waited for it got it
