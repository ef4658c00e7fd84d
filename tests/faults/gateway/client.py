"""A client that does what docs/gateway-protocol.md asks of clients, and holds the gateway to what it says there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.gateway.support import JsonClient
from tests.support.waiting import until
from veredus.gateway.gateway import Gateway

FIRST_FINAL = 4500
SUPERSEDED = 4503
ASK_AGAIN = 0.3
"""Seconds after which a join without an answer is asked again; the protocol says one."""


class Patient:
    """Resumes whenever it may, sends again what has no answer, and notes what it is told. Rejected requests are left to
    the test."""

    def __init__(self, gateway: Callable[[], Gateway], user: str) -> None:
        self._gateway = gateway
        self.token = user
        self.link: JsonClient
        self.messages: list[dict[str, Any]] = []
        """Numbered messages, each once."""
        self.told: dict[int, list[str]] = {}
        """What it heard of each request: accept, reject, or the code of its response."""
        self.rejected: dict[int, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        """The last answer about each group."""
        self._unanswered: dict[int, dict[str, Any]] = {}
        self._given_up = 0
        """Hellos that had no welcome: each may be attached late."""
        self._reading: asyncio.Task[None] | None = None
        self._resume: dict[str, Any] | None = None

    async def start(self) -> None:
        await self._attach()
        self._reading = asyncio.create_task(self._read())

    @property
    def sid(self) -> str:
        return self.link.sid

    def has(self, condition: Callable[[], Any]) -> Callable[[], Any]:
        """The condition, looked at only while nothing is wrong with what came."""

        def look() -> Any:
            if self._reading is not None and self._reading.done() and self._reading.exception():
                raise self._reading.exception()  # type: ignore[misc]
            return condition()

        return look

    async def has_read(self, top: int) -> None:
        await until(self.has(lambda: len(self.messages) >= top), what="what is in the log")

    # What it does.

    async def request(self, rid: int, action: str, name: str, **more: Any) -> None:
        """Until it is answered, rejected, or (with no_reply) accepted."""
        await self.begin(rid, action, name, **more)
        await self.is_over(rid)

    async def begin(self, rid: int, action: str, name: str, **more: Any) -> None:
        self._unanswered[rid] = {"t": "request", "rid": rid, "action": action, "body": {"name": name}, **more}
        self.rejected.pop(rid, None)
        await self._send(self._unanswered[rid])

    async def is_over(self, rid: int) -> None:
        await until(self.has(lambda: rid not in self._unanswered), what=f"an end of request {rid}, {self.told}")

    async def send_again(self, rid: int) -> None:
        frame = self.rejected[rid]
        more = {key: value for key, value in frame.items() if key not in ("t", "rid", "action", "body")}
        await self.request(rid, frame["action"], frame["body"]["name"], **more)

    async def send(self, frame: dict[str, Any]) -> None:
        await self._send(frame)

    async def change_group(self, group: str, joins: bool) -> None:
        """Asked again until it is done."""
        answer: dict[str, Any] = {}
        while answer.get("joined") is not joins or answer["code"]:
            self.groups.pop(group, None)
            await self._send({"t": "join" if joins else "leave", "group": group})
            await self.wait_a_moment(lambda: group in self.groups)
            answer = self.groups.get(group, {})
            assert answer.get("code", 503) in (0, 503), answer

    async def wait_a_moment(self, condition: Callable[[], Any]) -> None:
        """Before it is asked for again."""
        give_up = time.monotonic() + ASK_AGAIN
        await until(self.has(lambda: condition() or time.monotonic() > give_up))

    async def acknowledge(self) -> None:
        seq = self.link.cursor.get("seq", 0)
        if seq or self.told:
            await self._send({"t": "ack", "seq": seq, "rid_floor": max(self.told, default=0)})

    async def say_goodbye(self) -> None:
        await self._send({"t": "bye"})
        await self.close()

    def cut(self) -> None:
        self.link.cut()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
            await self.link.close()

    # What comes.

    async def _send(self, frame: dict[str, Any]) -> None:
        """Whatever is lost with a connection is sent again after the resume, or asked for again."""
        with suppress(ConnectionClosed):
            await self.link.send(frame)

    async def _attach(self) -> None:
        while True:
            client = await JsonClient.connect(self._gateway())
            try:
                await client.hello(self.token, self._resume, rid_floor=0)
            except ConnectionClosed as exc:
                self._given_up += 1
                self._closed(exc)
                await asyncio.sleep(0.02)
                continue
            if self._resume is not None:
                assert client.welcome["result"] == "resumed", client.welcome
            self.link = client
            return

    async def _read(self) -> None:
        while True:
            try:
                self._take(await self.link.next(3600))
            except ConnectionClosed as exc:
                self._closed(exc, by_itself=self._given_up > 0)
                self._resume = self.link.resumption()
                await self._attach()
                await self._send_unanswered()

    def _closed(self, exc: ConnectionClosed, *, by_itself: bool = False) -> None:
        """A hello that it gave up may be executed late, and then supersedes the one that came after it."""
        code = exc.rcvd.code if exc.rcvd is not None else 1006
        if code == SUPERSEDED and by_itself:
            self._given_up -= 1
        else:
            assert code < FIRST_FINAL, f"closed for good with {code} {exc.rcvd}"

    async def _send_unanswered(self) -> None:
        known = {row["rid"]: row["state"] for row in self.link.welcome.get("open", ())}
        for rid, frame in self._unanswered.items():
            state = known.get(rid)
            if state == "done" or (state == "open" and "accept" in self.told.get(rid, ())):
                continue
            await self._send(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        kind = frame["t"]
        if kind == "msg":
            self._message(frame)
        elif kind in ("accept", "reject"):
            rid = frame["rid"]
            self.told.setdefault(rid, []).append(kind)
            sent = self._unanswered.get(rid)
            if kind == "reject":
                assert "accept" not in self.told[rid], f"rejected after it was accepted: {self.told}"
                assert frame["retryable"], frame
                assert sent is not None, f"rejected after its end: {self.told}"
                self.rejected[rid] = self._unanswered.pop(rid)
            elif sent is not None and sent.get("no_reply"):
                del self._unanswered[rid]
        elif kind == "vol":
            self.groups[frame["body"]["group"]] = frame["body"]
        else:
            assert kind == "close", f"unexpected: {frame}"

    def _message(self, frame: dict[str, Any]) -> None:
        expected = len(self.messages) + 1
        if frame["seq"] < expected:
            assert frame == self.messages[frame["seq"] - 1], "a number has two messages"
            return
        assert frame["seq"] == expected, f"a hole before {frame}"
        self.messages.append(frame)
        if frame.get("kind") == "response":
            rid = frame["rid"]
            assert not self.rejected.get(rid), f"answered after it was rejected: {frame}"
            answers = [one for one in self.messages if one.get("kind") == "response" and one["rid"] == rid]
            assert len(answers) == 1, f"two answers: {answers}"
            self.told.setdefault(rid, []).append(str(frame.get("code", 0)))
            self._unanswered.pop(rid, None)
