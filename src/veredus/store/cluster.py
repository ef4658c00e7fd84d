"""Talking to a cluster: which node has which slot, kept up to date by what the nodes answer."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from veredus.errors import ConnectionLost, StoreError
from veredus.store import faults
from veredus.store.address import Address
from veredus.store.connection import Argument, Connection
from veredus.store.redis import Call, Server
from veredus.store.scripts import Script

SLOTS = 16384
_REDIRECTS = 5


def slot_of(key: str) -> int:
    """The slot of a key: of the part in braces, if there is one."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode(), 0) % SLOTS


class Cluster:
    """All nodes of a cluster. Every call goes to the node that has its keys."""

    def __init__(self, address: Address, timeout: float, name: str) -> None:
        self.address = address
        self._timeout = timeout
        self._name = name
        self._nodes: dict[tuple[str, int], Server] = {}
        self._slots: list[tuple[str, int] | None] = [None] * SLOTS
        self._learning: asyncio.Task[None] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        return await self._routed(
            keys[0],
            lambda node: node.run(script, keys, args),
            lambda node: node.ask("EVAL", script.source, len(keys), *keys, *args),
        )

    async def run_each(self, calls: Sequence[Call]) -> list[Any]:
        # The shared connection of each node pipelines what is sent to it in the same moment: one round trip per node.
        return await asyncio.gather(*[self.run(c.script, c.keys, c.args) for c in calls], return_exceptions=True)

    async def command(self, *args: Argument, key: str) -> Any:
        return await self._routed(key, lambda node: node.command(*args, key=key), lambda node: node.ask(*args))

    async def open(self, key: str) -> Connection:
        node = await self._node_for(key)
        try:
            return await node.open(key)
        except ConnectionLost:
            self._forget()
            raise

    def age(self, key: str) -> float:
        endpoint = self._slots[slot_of(key)]
        return self._nodes[endpoint].age(key) if endpoint in self._nodes else 0.0

    def where(self) -> str:
        return self.address.describe()

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
        for node in self._nodes.values():
            await node.close()
        self._nodes.clear()

    async def _routed(
        self, key: str, call: Callable[[Server], Awaitable[Any]], ask: Callable[[Server], Awaitable[Any]]
    ) -> Any:
        """`call` on the node that has the slot of the key, or `ask` on the one that is just taking it over."""
        for _ in range(_REDIRECTS):
            node = await self._node_for(key)
            try:
                return await call(node)
            except faults.Moved as moved:
                if moved.asking:
                    return await ask(self._node(moved.endpoint))
                self._slots[slot_of(key)] = moved.endpoint
            except ConnectionLost:
                self._forget()
                raise
        raise ConnectionLost(f"the cluster sent {key!r} in circles")

    async def _node_for(self, key: str) -> Server:
        slot = slot_of(key)
        endpoint = self._slots[slot]
        if endpoint is None:
            if self._learning is None or self._learning.done():
                self._learning = asyncio.create_task(self._learn())
            await asyncio.shield(self._learning)
            endpoint = self._slots[slot]
        if endpoint is None:
            raise ConnectionLost(f"no node of the cluster has slot {slot}")
        return self._node(endpoint)

    def _node(self, endpoint: tuple[str, int]) -> Server:
        if endpoint not in self._nodes:

            async def fixed() -> tuple[str, int]:
                return endpoint

            self._nodes[endpoint] = Server(self.address, fixed, self._timeout, self._name)
        return self._nodes[endpoint]

    def _forget(self) -> None:
        """A node is gone: ask again who has what before the next call."""
        self._slots = [None] * SLOTS

    async def _learn(self) -> None:
        problems: list[str] = []
        for endpoint in [*self._nodes, *self.address.hosts]:
            try:
                async with asyncio.timeout(self._timeout):
                    rows = await self._node(endpoint).command("CLUSTER", "SLOTS", key="")
            except (StoreError, TimeoutError) as exc:
                problems.append(f"{endpoint[0]}:{endpoint[1]}: {exc}")
                continue
            for row in rows:
                first, last, master = row[0], row[1], row[2]
                host = master[0].decode() if master[0] else ""
                self._slots[first : last + 1] = [(host or endpoint[0], int(master[1]))] * (last - first + 1)
            return
        raise ConnectionLost("no node of the cluster answers: " + "; ".join(problems))
