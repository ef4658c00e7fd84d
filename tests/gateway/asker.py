"""A client that asks through a bad network, by hand: it resumes, sends again what it must, and notes every word."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.gateway.support import JsonClient

SILENCE = 4.0
"""Seconds without a frame, pings included, after which it connects anew."""
OPEN, ACCEPTED, ANSWERED, GIVEN_UP = "open", "accepted", "answered", "given up"


@dataclass(slots=True)
class Asked:
    rid: int
    key: str
    action: str
    no_reply: bool
    deadline_ms: int
    state: str = OPEN
    code: int = 0
    words: list[str] = field(default_factory=list)
    """What the gateway said of it."""
    rejects: int = 0
    may_send: bool = True
    """False between a reject and its repetition."""
    sent_on: int = 0
    """The connection on which a copy is under way."""

    def frame(self) -> dict[str, Any]:
        body = {"key": self.key}
        what = {"t": "request", "rid": self.rid, "action": self.action, "body": body, "no_reply": self.no_reply}
        return {**what, "deadline_ms": self.deadline_ms}

    @property
    def is_over(self) -> bool:
        return self.state in (ANSWERED, GIVEN_UP) or (self.no_reply and self.state == ACCEPTED)


class Asker:
    def __init__(self, name: str, urls: Sequence[str], dice: random.Random, deadline: float) -> None:
        self.name = name
        self._deadline_ms = round(deadline * 1000)
        self._urls = itertools.cycle(urls)
        self._dice = dice
        self.asked: dict[int, Asked] = {}
        self.connections = 0
        self.problems: list[str] = []
        self._client: JsonClient | None = None
        self._resume: dict[str, Any] | None = None
        self._resending: set[asyncio.Task[None]] = set()

    async def ask(self, action: str, *, no_reply: bool) -> None:
        rid = len(self.asked) + 1
        asked = self.asked[rid] = Asked(rid, f"{self.name}.{rid}", action, no_reply, self._deadline_ms)
        await self._send(asked)

    @property
    def waiting(self) -> list[Asked]:
        return [asked for asked in self.asked.values() if not asked.is_over]

    async def run(self) -> None:
        """Connected again and again, until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    client = await JsonClient.connect(next(self._urls), open_timeout=SILENCE)
                    await client.hello(self.name, self._resume)
            except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake):
                await asyncio.sleep(self._dice.uniform(0.05, 0.3))
                continue
            self.connections += 1
            try:
                await self._welcomed(client)
                while True:
                    self._take(await client.heard(SILENCE), client)
                    self._resume = client.resumption()
                    if client.messages:
                        client.messages.clear()
                        await client.ack()
            except (OSError, TimeoutError, ConnectionClosed):
                self._client = None
                client.cut()

    async def _welcomed(self, client: JsonClient) -> None:
        if self._resume is not None and client.welcome["result"] != "resumed":
            self.problems.append(f"{self.name}: {client.welcome}")
        self._resume = client.resumption()
        self._client = client
        known = {one["rid"]: one["state"] for one in client.welcome.get("open", [])}
        for asked in self.waiting:
            state = known.get(asked.rid)
            if state == "done" and asked.no_reply:
                asked.state = ACCEPTED
            elif asked.may_send and state != "done" and not (state == "open" and asked.state == ACCEPTED):
                await self._send(asked)

    async def _send(self, asked: Asked) -> None:
        if self._client is not None and asked.sent_on != self.connections:
            asked.sent_on = self.connections
            try:
                async with asyncio.timeout(SILENCE):
                    await self._client.send(asked.frame())
            except (OSError, TimeoutError, ConnectionClosed):
                pass

    def _take(self, frame: dict[str, Any], client: JsonClient) -> None:
        asked = self.asked.get(frame.get("rid", 0))
        if asked is None or frame["t"] not in ("accept", "reject", "msg"):
            return
        asked.words.append(f"{frame['t']} {frame.get('code', 0)} {frame.get('error', '')}".strip())
        if asked.state == GIVEN_UP or (asked.state == ANSWERED and frame["t"] != "accept"):
            self.problems.append(f"{asked.key}, {asked.state}: {asked.words}")
        elif frame["t"] == "msg":
            asked.state, asked.code = ANSWERED, frame.get("code", 0)
        elif frame["t"] == "accept":
            asked.state = ACCEPTED if asked.state == OPEN else asked.state
        elif asked.state == ACCEPTED:
            self.problems.append(f"{asked.key} was accepted and then rejected: {asked.words}")
        else:
            self._rejected(asked, frame)

    def _rejected(self, asked: Asked, frame: dict[str, Any]) -> None:
        asked.rejects += 1
        asked.sent_on = 0
        if not frame.get("retryable") or self._dice.random() < 0.3:
            asked.state = GIVEN_UP
            return
        asked.may_send = False
        task = asyncio.create_task(self._again(asked, frame.get("retry_after_ms", 0) / 1000))
        self._resending.add(task)
        task.add_done_callback(self._resending.discard)

    async def _again(self, asked: Asked, seconds: float) -> None:
        await asyncio.sleep(seconds + self._dice.uniform(0, 0.2))
        asked.may_send = True
        if not asked.is_over:
            await self._send(asked)
