"""A cluster client: every call goes to the node that has its keys, and calls to one node share a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from veredus.errors import ConnectionLost, StoreError
from veredus.store.connection import error_replies
from veredus.store.connection.address import Address
from veredus.store.connection.connection import Argument, Connection
from veredus.store.connection.redis import ScriptCall, SingleServer
from veredus.store.connection.scripts import Script
from veredus.store.connection.slot_map import SLOTS, Endpoint, SlotMap, slot_of
from veredus.wire import keys as names

__all__ = ["SLOTS", "Cluster", "slot_of"]

_REDIRECTS = 5
IMPATIENCE = 0.25
"""Seconds for which a node that has failed is awaited, until it answers again."""


class Cluster:
    """All nodes of a cluster. A node that is down delays only the calls that need it."""

    def __init__(self, address: Address, timeout: float, name: str) -> None:
        self.address = address
        self._timeout = timeout
        self._name = name
        self._nodes: dict[Endpoint, SingleServer] = {}
        self._map = SlotMap(address.hosts, self._ask_for_slots)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        return _sound((await self.run_each([ScriptCall(script, keys, args)]))[0])

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        safe = [guarded(call) for call in calls]

        def send(node: SingleServer, positions: Sequence[int]) -> Awaitable[list[Any]]:
            return node.run_each([safe[position] for position in positions])

        def ask(node: SingleServer, position: int) -> Awaitable[Any]:
            call = safe[position]
            return node.ask("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)

        return await self._each([call.keys[0] for call in calls], send, ask)

    async def command(self, *args: Argument, key: str) -> Any:
        return _sound((await self._commands([key], [args]))[0])

    async def command_each(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._commands([_text(args[1]) for args in commands], commands)

    async def open(self, key: str) -> Connection:
        endpoint = await self._map.find(slot_of(key))
        try:
            return await self._node(endpoint).open(key)
        except ConnectionLost:
            self._map.doubt(endpoint)
            raise

    async def be_connected(self, key: str) -> None:
        await self._node(await self._map.find(slot_of(key))).be_connected()

    def known_shares(self, routes: Sequence[str]) -> list[list[int]]:
        """Positions of keys that are, as far as known, on the same node."""
        shares: dict[Endpoint | None, list[int]] = {}
        for position, route in enumerate(routes):
            shares.setdefault(self._map.owner(slot_of(route)), []).append(position)
        return list(shares.values())

    async def by_node(self, keys: Sequence[str]) -> list[list[str]]:
        """The keys, grouped by node."""
        found: dict[Endpoint, list[str]] = {}
        for key in keys:
            found.setdefault(await self._map.find(slot_of(key)), []).append(key)
        return list(found.values())

    async def place(self, key: str) -> str:
        """The node that has this key, as text."""
        host, port = await self._map.find(slot_of(key))
        return f"{host}:{port}"

    def where(self) -> str:
        return self.address.describe()

    async def close(self) -> None:
        self._map.close()
        for node in self._nodes.values():
            await node.close()
        self._nodes.clear()

    async def _commands(self, routes: Sequence[str], commands: Sequence[Sequence[Argument]]) -> list[Any]:
        def send(node: SingleServer, positions: Sequence[int]) -> Awaitable[list[Any]]:
            return node.command_each([commands[position] for position in positions])

        return await self._each(routes, send, lambda node, position: node.ask(*commands[position]))

    async def _each(
        self,
        routes: Sequence[str],
        send: Callable[[SingleServer, Sequence[int]], Awaitable[list[Any]]],
        ask: Callable[[SingleServer, int], Awaitable[Any]],
    ) -> list[Any]:
        """Send each node its share in one write. Redirected calls follow to their new node; calls to a slot that is
        being moved are sent one at a time to its target."""
        results: list[Any] = [ConnectionLost("the cluster sent it in circles")] * len(routes)
        slots = [slot_of(route) for route in routes]
        left = list(range(len(routes)))
        for _ in range(_REDIRECTS):
            shares, left = await self._shares(slots, left, results), []
            replies = await asyncio.gather(*[self._send(one, share, send) for one, share in shares.items()])
            for (endpoint, share), answers in zip(shares.items(), replies, strict=True):
                for position, answer in zip(share, answers, strict=True):
                    results[position] = answer
                    if isinstance(answer, error_replies.Moved):
                        target = (answer.endpoint[0] or endpoint[0], answer.endpoint[1])
                        if answer.asking:
                            asked = ask(self._node(target), position)
                            results[position] = (await asyncio.gather(asked, return_exceptions=True))[0]
                        else:
                            self._map.moved(slots[position], target)
                            left.append(position)
                    elif isinstance(answer, ConnectionLost):
                        self._map.doubt(endpoint)
            if not left:
                break
        return results

    async def _send(
        self,
        endpoint: Endpoint,
        share: Sequence[int],
        send: Callable[[SingleServer, Sequence[int]], Awaitable[list[Any]]],
    ) -> list[Any]:
        """Do not wait for a node that has just failed: calls to all nodes would otherwise wait for it each time."""
        node = self._node(endpoint)
        if self._map.is_doubted(endpoint):
            try:
                async with asyncio.timeout(IMPATIENCE):
                    await node.be_connected()
            except StoreError as exc:
                return [exc] * len(share)
            except TimeoutError:
                return [ConnectionLost(f"{endpoint[0]}:{endpoint[1]} does not answer")] * len(share)
            self._map.trust(endpoint)
        return await send(node, share)

    async def _shares(self, slots: Sequence[int], left: list[int], results: list[Any]) -> dict[Endpoint, list[int]]:
        """Group the remaining calls by node. A call without a node gets its error here."""
        shares: dict[Endpoint, list[int]] = {}
        failure: ConnectionLost | None = None
        for position in left:
            endpoint = self._map.owner(slots[position])
            if endpoint is None and failure is None:
                try:
                    endpoint = await self._map.find(slots[position])
                except ConnectionLost as exc:
                    failure = exc
            if endpoint is None:
                results[position] = failure
            else:
                shares.setdefault(endpoint, []).append(position)
        return shares

    def _node(self, endpoint: Endpoint) -> SingleServer:
        if endpoint not in self._nodes:

            async def fixed() -> Endpoint:
                return endpoint

            self._nodes[endpoint] = SingleServer(self.address, fixed, self._timeout, self._name)
        return self._nodes[endpoint]

    async def _ask_for_slots(self, endpoint: Endpoint) -> Any:
        async with asyncio.timeout(self._timeout):
            return await self._node(endpoint).command("CLUSTER", "SLOTS", key="")


def guarded(call: ScriptCall) -> ScriptCall:
    """With one more key that never exists: the script is refused while its slot moves."""
    guard = names.absent(call.keys[0]) if call.script.fixed_keys else ""
    return ScriptCall(call.script, [*call.keys, guard], call.args) if guard else call


def _text(key: Argument) -> str:
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else str(key)


def _sound(reply: Any) -> Any:
    if isinstance(reply, BaseException):
        raise reply
    return reply
