"""The gateway part of the demo: clients on WebSocket and QUIC, cut connections, a gateway killed with -9."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from veredus.peer import Connected, Item, Message, Peer, connect

LETTERS = 120
CLIENTS = 3  # of each transport
PATIENCE = 30.0


class Delivered(NamedTuple):
    """The figures of the run."""

    messages: int
    missing: int
    disorder: int
    answers: int
    resumes: int
    seconds: float

    @property
    def whole(self) -> bool:
        expected = 2 * CLIENTS * (LETTERS + 3)
        return (self.messages, self.missing, self.disorder, self.answers) == (expected, 0, 0, 2 * CLIENTS)


class Gateways:
    """Two gateway processes on free ports."""

    def __init__(self) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        self.urls: dict[str, list[str]] = {"ws": [], "quic": []}

    async def start(self) -> None:
        command = [sys.executable, "-m", "veredus", "gateway", "veredus.demo.tasks:app", "--log-level", "info"]
        for number in range(2):
            log = Path(os.environ["VEREDUS_DATA"]) / f"gateway-{number}.log"
            ports = ["--ws", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--http", "off", "--drain", "0.2"]
            with await asyncio.to_thread(log.open, "wb") as out:
                self.processes.append(await asyncio.create_subprocess_exec(*command, *ports, stdout=out, stderr=out))
            found = await self._ports(log)
            for kind, urls in self.urls.items():
                urls.append(f"{kind}://{found[kind]}")

    async def _ports(self, log: Path) -> dict[str, str]:
        """Read the ports from the gateway's log."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            text = await asyncio.to_thread(log.read_text)
            found = dict(re.findall(r"\b(ws|quic)\W+(?:\w+://)?(127\.0\.0\.1:\d+)", text, re.IGNORECASE))
            if len(found) == 2:
                return found
            await asyncio.sleep(0.02)
        raise SystemExit(f"the gateway did not come up: {await asyncio.to_thread(log.read_text)}")

    async def kill_one(self) -> int:
        victim = self.processes[0]
        victim.kill()
        await victim.wait()
        return victim.pid

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.terminate()
        for process in self.processes:
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()


class DemoReader:
    """One client: requests its letters and records every message number."""

    def __init__(self, urls: list[str], name: str) -> None:
        self.numbers: list[int] = []
        self.resumes = 0
        self._urls = urls
        self._name = name

    async def run(self, cut_at: int) -> int:
        peer = connect(
            self._urls, token=self._name, on_message=self._note, on_event=self._event, backoff_max=0.5, client="demo"
        )
        async with peer:
            cutting = asyncio.create_task(self._cut(peer, cut_at))
            reply = await peer.request("deliver_letters", {"letters": LETTERS}, deadline=60)
            await wait_until(lambda: len(self.numbers) >= LETTERS + 3)
            await cutting
            delivered: int = reply["delivered"]
            return delivered

    async def _cut(self, peer: Peer, at: int) -> None:
        await wait_until(lambda: len(self.numbers) >= at)
        peer.cut()

    def _note(self, item: Item) -> None:
        if isinstance(item, Message):
            self.numbers.append(item.seq)

    def _event(self, event: Any) -> None:
        self.resumes += isinstance(event, Connected) and event.result == "resumed"


async def show_gateway(say: Callable[[str], None]) -> Delivered:
    """Run this part; it takes about five seconds."""
    gateways = Gateways()
    try:
        await gateways.start()
        pids = ", ".join(str(process.pid) for process in gateways.processes)
        say(f"2 gateway processes started: {pids}; {CLIENTS} clients over WebSocket, {CLIENTS} over QUIC")
        began = time.monotonic()
        # Every other client prefers the second gateway, so that both have clients.
        readers = [
            DemoReader(urls[:: 1 if n % 2 else -1], f"{kind}-{n}")
            for kind, urls in gateways.urls.items()
            for n in range(CLIENTS)
        ]
        running = [asyncio.create_task(reader.run(20 + 5 * n)) for n, reader in enumerate(readers)]
        await wait_until(lambda: min(len(reader.numbers) for reader in readers) >= 60)
        victim = await gateways.kill_one()
        say(f"every connection was cut once; kill -9 {victim}: a gateway dies ...")
        answers = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
        seconds = time.monotonic() - began
    finally:
        await gateways.stop()
    done = Delivered(
        messages=sum(len(reader.numbers) for reader in readers),
        missing=sum(len(set(range(1, LETTERS + 4)) - set(reader.numbers)) for reader in readers),
        disorder=sum(a >= b for reader in readers for a, b in zip(reader.numbers, reader.numbers[1:], strict=False)),
        answers=sum(answer == LETTERS for answer in answers),
        resumes=sum(reader.resumes for reader in readers),
        seconds=seconds,
    )
    say(f"... and {done.messages} numbered messages arrived in order over {done.resumes} resumed connections")
    return done


async def wait_until(reached: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > give_up:
            raise SystemExit("the gateway part of the demo did not finish")
        await asyncio.sleep(0.01)
