"""Members of a mixed fleet: live Go servers and Veredus workers, real processes that can be killed and told apart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from tests.interop.live.peer import GoPeer

QUEUES = {"urgent": 6, "normal": 3, "slow": 1}
TYPES = ("storm:", "aggregated:")
CONCURRENCY = 10


class Member(Protocol):
    kind: str
    pid: int

    async def start(self) -> None: ...

    async def kill(self) -> None: ...

    async def stop(self) -> None: ...


class GoMember:
    def __init__(self, program: Path, url: str) -> None:
        self.kind = program.name
        self.pid = 0
        self._peer = GoPeer(program, url)

    async def start(self) -> None:
        await self._peer.start()
        self.pid = self._peer.pid
        settings: dict[str, Any] = {"retry_ms": 300, "group_grace_ms": 1000, "group_size": 20}
        await self._peer.serve(*TYPES, queues=QUEUES, concurrency=CONCURRENCY, **settings)

    async def kill(self) -> None:
        await self._peer.kill()

    async def stop(self) -> None:
        await self._peer.stop()

    def facts(self) -> list[dict[str, Any]]:
        peer = self._peer
        kept = (("began", peer.began), ("ran", peer.ran), ("aggregated", peer.aggregated))
        return [{**fact, "what": what, "pid": self.pid} for what, facts in kept for fact in facts]


class VeredusMember:
    """`veredus worker`, as anybody starts it."""

    def __init__(self, url: str, facts: Path, log: Path, lease: float) -> None:
        self.kind = "veredus"
        self.pid = 0
        self._log = log
        self._environment = {**os.environ, "STORM_FACTS": str(facts)}
        queues = ",".join(f"{name}={weight}" for name, weight in QUEUES.items())
        self._command = [
            sys.executable, "-m", "veredus", "worker", "tests.interop.live.storm_app:app", "--redis", url, "-q", queues,
            "--concurrency", str(CONCURRENCY), "--lease", str(lease), "--max-crashes", "0", "--log-level", "warning",
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        self.pid = self._process.pid

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        assert await self._end(signal.SIGTERM) == 0, self._log.read_text()

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await asyncio.wait_for(self._process.wait(), 60)


class Fleet:
    """Two Go servers, one of each release, and two Veredus workers; each of them can be killed and replaced."""

    def __init__(self, programs: list[Path], url: str, folder: Path, lease: float) -> None:
        self._programs, self._url, self._lease = programs, url, lease
        self._facts, self.log = folder / "facts", folder / "log"
        self._facts.touch()
        self._go: list[GoMember] = []
        self.members: list[Member] = []
        self.kills: dict[int, float] = {}
        self.killed: list[str] = []

    async def start(self) -> None:
        for place in range(4):
            self.members.append(await self._member(place))

    async def _member(self, place: int) -> Member:
        member: Member
        if place < len(self._programs):
            member = GoMember(self._programs[place], self._url)
            self._go.append(member)
        else:
            member = VeredusMember(self._url, self._facts, self.log, self._lease)
        await member.start()
        return member

    async def replace(self, place: int) -> None:
        """kill -9, and another one at once."""
        victim = self.members[place]
        await victim.kill()
        self.kills[victim.pid] = time.time()
        self.killed.append(victim.kind)
        self.members[place] = await self._member(place)

    async def stop(self) -> None:
        while self.members:
            await self.members.pop().stop()

    def facts(self) -> list[dict[str, Any]]:
        """What every member wrote down, the dead ones as well."""
        found = [json.loads(line) for line in self._facts.read_text().splitlines()]
        for member in self._go:
            found += member.facts()
        return found
