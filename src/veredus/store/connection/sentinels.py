"""Sentinels: asks them for the master, and subscribes to its changes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from veredus.errors import ConnectionLost, StoreError
from veredus.process import forks
from veredus.store.connection.address import Address
from veredus.store.connection.connection import Connection, open_connection

logger = logging.getLogger("veredus.store")

CHANNEL = "+switch-master"
CHECK = 10.0
"""Seconds after which a silent sentinel is asked whether it is alive."""
PAUSE = 1.0


class Sentinels:
    """The sentinels of one master. The one that answered last is asked first, so that one that hangs delays only one
    call."""

    def __init__(self, address: Address, timeout: float, on_switch: Callable[[tuple[str, int]], None]) -> None:
        self._address = address
        self._timeout = timeout
        self._on_switch = on_switch
        self._order = list(address.hosts)
        self._listening: asyncio.Task[None] | None = None
        forks.register(self)

    def forked(self) -> None:
        """After a fork: subscribes again, once it has a connection."""
        forks.leak(self._listening)
        self._listening = None

    async def find_master(self) -> tuple[str, int]:
        found = await self._ask("GET-MASTER-ADDR-BY-NAME")
        return found[0].decode(), int(found[1])

    async def count_candidates(self) -> int:
        """The number of replicas that may become the master: those that are alive and have a priority."""
        count = 0
        for row in await self._ask("REPLICAS"):
            facts = dict(zip(row[::2], row[1::2], strict=True))
            is_down = b"s_down" in facts[b"flags"] or b"o_down" in facts[b"flags"]
            count += not is_down and facts[b"slave-priority"] != b"0"
        return count

    async def _ask(self, question: str) -> Any:
        """The first sentinel that knows the master."""
        problems: list[str] = []
        for endpoint in list(self._order):
            try:
                sentinel = await self._open(endpoint)
            except StoreError as exc:
                problems.append(str(exc))
                continue
            try:
                found = await sentinel.call("SENTINEL", question, self._address.master)
            except StoreError as exc:
                problems.append(f"{endpoint[0]}:{endpoint[1]}: {exc}")
                continue
            finally:
                sentinel.close()
            if found is not None:
                self._order.remove(endpoint)
                self._order.insert(0, endpoint)
                return found
            problems.append(f"{endpoint[0]}:{endpoint[1]} knows no master {self._address.master!r}")
        raise ConnectionLost("no sentinel names a master: " + "; ".join(problems))

    def listen(self) -> None:
        """From now on, report when the master changes: the old one may continue to accept writes, which will be
        lost."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="veredus-sentinel")

    def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def _listen(self) -> None:
        while True:
            for endpoint in list(self._order):
                try:
                    await self._hear(endpoint)
                except StoreError as exc:
                    logger.debug("sentinel %s:%d: %s", *endpoint, exc)
                except Exception:
                    logger.exception("listening to sentinel %s:%d failed, trying again", *endpoint)
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))

    async def _hear(self, endpoint: tuple[str, int]) -> None:
        """Stay with this sentinel until its connection breaks."""
        connection = await self._open(endpoint)
        broken = asyncio.Event()
        connection.on_close = broken.set
        connection.on_message = self._switched
        try:
            await connection.call("SUBSCRIBE", CHANNEL)
            self._on_switch(await self.find_master())  # messages before the subscription are not received
            while not broken.is_set():
                try:
                    async with asyncio.timeout(CHECK):
                        await broken.wait()
                except TimeoutError:
                    await connection.call("PING")
        finally:
            connection.close()

    def _switched(self, _: bytes, data: bytes) -> None:
        """`name old-host old-port new-host new-port`"""
        words = data.decode(errors="replace").split()
        if len(words) == 5 and words[0] == self._address.master:
            self._on_switch((words[3], int(words[4])))

    async def _open(self, endpoint: tuple[str, int]) -> Connection:
        return await open_connection(
            endpoint,
            timeout=self._timeout,
            username=self._address.sentinel_username,
            password=self._address.sentinel_password,
            tls=self._address.sentinel_tls,
        )
