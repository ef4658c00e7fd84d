"""Hints: the subscription that tells a node what was appended to its sessions; it reconnects and probes itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from veredus.errors import ConnectionLost, StoreError
from veredus.model.backoff import Backoff
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.connection import Connection
from veredus.store.connection.redis import Redis
from veredus.store.sessions.session_partitions import SHARDED, SessionPartitions
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import Hint, HintProbe, Kick, pack_probe, unpack_hints

logger = logging.getLogger("veredus.gateway")

PROBE_EVERY = 5.0
MISSES = 3
"""Lost probes in a row after which the connection counts as broken."""
MAX_PAUSE = 2.0

OnHints = Callable[[Sequence[Hint | Kick]], None]


class Hints:
    """One per node. `on_hints` gets the rows of each message. `on_doubt` is called whenever hints may have been missed
    (after a broken connection or lost probes): all sessions must then be read from the log."""

    def __init__(
        self,
        redis: Redis,
        node: str,
        on_hints: OnHints,
        on_doubt: Callable[[], None],
        *,
        probe_every: float = PROBE_EVERY,
        partitions: SessionPartitions | None = None,
    ) -> None:
        self._redis = redis
        self._node = keys.check_name("node", node)
        self._on_hints = on_hints
        self._on_doubt = on_doubt
        self._every = probe_every
        self._partitions = partitions or SessionPartitions(redis)
        self._connections: list[Connection] = []
        self._channels: list[list[str]] = []
        """By connection."""
        self._broken = asyncio.Event()
        self._ready = asyncio.Event()
        self._number = 0
        self._unheard: set[int] = set()
        self._heard = asyncio.Event()
        self._misses = 0

    @property
    def healthy(self) -> bool:
        """False while not subscribed, or while a probe is missing."""
        return self._ready.is_set() and self._misses == 0

    async def subscribed(self) -> None:
        """Wait until hints arrive."""
        await self._ready.wait()

    async def run(self) -> None:
        """Listen until cancelled: subscribe, probe every 5 s, and subscribe again when the connection breaks or three
        probes in a row are lost."""
        backoff = Backoff(longest=MAX_PAUSE)
        again = False
        try:
            while True:
                try:
                    await self._subscribe()
                except StoreError as exc:
                    logger.warning("cannot subscribe to the hints of node %s: %s", self._node, exc)
                    await asyncio.sleep(backoff.take())
                    again = True
                    continue
                backoff = Backoff(longest=MAX_PAUSE)
                if again:
                    self._on_doubt()
                again = True
                await self._listen()
                self._drop()
        finally:
            self._drop()

    async def probe(self) -> bool:
        """Send one probe through every connection and wait one round for them. Returns True if all arrived."""
        self._unheard.clear()
        self._heard.clear()
        sharded = await self._partitions.channel() == SHARDED
        try:
            for channel in self._probed():
                self._number += 1
                self._unheard.add(self._number)
                verb = "SPUBLISH" if sharded else "PUBLISH"
                await self._redis.command(verb, channel, pack_probe(self._number), key=channel)
            async with asyncio.timeout(self._every):
                while self._unheard and not self._broken.is_set():
                    self._heard.clear()
                    await self._heard.wait()
        except (StoreError, TimeoutError):
            return False
        return not self._unheard

    async def _listen(self) -> None:
        """Probe until the connection breaks or too many probes are lost."""
        loop = asyncio.get_running_loop()
        while not self._broken.is_set():
            begun = loop.time()
            if await self.probe():
                self._misses = 0
            elif not self._broken.is_set():
                self._misses += 1
                if self._misses >= MISSES:
                    logger.error(
                        "node %s receives no hints (%s probes were lost): subscribing again", self._node, MISSES
                    )
                    return
            try:
                async with asyncio.timeout(self._every * random.uniform(0.9, 1.1) - (loop.time() - begun)):
                    await self._broken.wait()
            except TimeoutError:
                pass

    async def _subscribe(self) -> None:
        self._broken.clear()
        if await self._partitions.channel() == SHARDED and isinstance(self._redis, Cluster):
            channels = [keys.sharded_hints(tag, self._node) for tag in keys.TAGS]
            await self._redis.command_each([("EXISTS", channel) for channel in channels])  # updates the slot map
            self._channels = await self._redis.by_node(channels)
            verb = "SSUBSCRIBE"
        else:
            self._channels = [[keys.hints(self._node)]]
            verb = "SUBSCRIBE"
        try:
            for channels in self._channels:
                connection = await self._redis.open(channels[0])
                self._connections.append(connection)
                connection.on_message = self._receive
                for reply in connection.call_many([(verb, channel) for channel in channels]):
                    await reply
                connection.on_close = self._break
                if not connection.alive:
                    raise ConnectionLost(f"the connection to {connection.where} is closed")
        except StoreError:
            self._drop()
            raise
        self._misses = 0
        self._ready.set()

    def _break(self) -> None:
        self._broken.set()
        self._heard.set()  # wake up a waiting probe

    def _drop(self) -> None:
        self._ready.clear()
        for connection in self._connections:
            connection.on_close = None
            connection.close()
        self._connections.clear()

    def _probed(self) -> list[str]:
        """One channel of each connection."""
        return [channels[0] for channels in self._channels]

    def _receive(self, channel: bytes, data: bytes) -> None:
        try:
            rows = unpack_hints(data)
        except ValueError as exc:
            logger.warning("node %s received an invalid hint: %s", self._node, exc)
            return
        hints: list[Hint | Kick] = []
        for row in rows:
            if isinstance(row, HintProbe):
                self._unheard.discard(row.number)
                self._heard.set()
            else:
                hints.append(row)
        if hints:
            self._on_hints(hints)
