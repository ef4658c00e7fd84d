"""A client of the gateway, made of a WebSocket library and docs/gateway-protocol.md: nothing of Veredus is imported.

client = Client("ws://127.0.0.1:8765/", "token", print)
running = asyncio.create_task(client.run())
print(await client.request("action", {"some": "arguments"}))
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

Frame = dict[str, Any]
OPTIONS: Any = {"subprotocols": ["veredus.gw.1.json"], "compression": None, "max_size": None}
FINAL = (1002, 1003, 1007, 1009, *range(4500, 5000))  # after any other close code the session goes on


class Client:
    def __init__(self, url: str, token: str, handler: Callable[[Frame], None]) -> None:
        """The handler gets each `msg` once and in order, each `vol`, and `gap` or `welcome` where some are missing."""
        self.url, self.token, self.handler = url, token, handler
        self.socket: ClientConnection | None = None  # after its welcome
        self.resume: Frame = {}  # sid, secret and cursor
        self.open: dict[int, tuple[Frame, asyncio.Future[Any]]] = {}  # requests without an answer
        self.rid, self.failures, self.retry_after, self.silence = 0, 0, 0.0, 30.0

    async def request(self, action: str, body: Any = None) -> Any:
        self.rid += 1
        frame, answer = {"t": "request", "rid": self.rid, "action": action, "body": body}, asyncio.Future[Any]()
        self.open[self.rid] = frame, answer
        await self.send(frame)
        return await answer

    async def send(self, *frames: Frame) -> None:
        if frames and self.socket and self.socket.close_code is None:  # else requests leave after the next welcome
            await self.socket.send("\n".join(json.dumps(frame) for frame in frames))

    async def run(self) -> int:
        """Until the gateway ends the session for good; returns the close code."""
        code = 0
        while code not in FINAL:
            code, self.socket, self.retry_after = 1006, None, 0.0
            try:
                async with connect(self.url, **OPTIONS) as socket:
                    resume = {"resume": self.resume} if self.resume else {}
                    await socket.send(json.dumps({"t": "hello", "version": 1, "token": self.token, **resume}))
                    while True:
                        for line in str(await asyncio.wait_for(socket.recv(), self.silence)).splitlines():
                            await self.handle(json.loads(line), socket)
            except (ConnectionClosed, InvalidHandshake, OSError) as exc:  # TimeoutError is an OSError
                code = getattr(getattr(exc, "rcvd", None), "code", 1006)
            self.failures += 1
            await asyncio.sleep(self.retry_after + random.random() * min(20, 0.1 * 2**self.failures))
        return code

    async def handle(self, frame: Frame, socket: ClientConnection) -> None:
        kind, later = frame["t"], asyncio.get_running_loop().call_later
        if kind == "welcome":
            await self.welcome(frame, socket)
        elif kind in ("msg", "gap"):
            first, cursor = frame["seq" if kind == "msg" else "from"], self.resume["cursor"]
            if first > cursor.get("seq", 0) + 1:
                await socket.close(4007)  # a hole
            elif (last := frame.get("to", first)) > cursor.get("seq", 0):  # else it was handled before
                (self.answer if frame.get("kind") == "response" else self.handler)(frame)
                cursor.update(seq=last, ts=frame["ts"])
                await self.send({"t": "ack", "seq": last})
        elif kind == "reject" and frame.get("retryable") and frame["rid"] in self.open:
            request, delay = self.open[frame["rid"]][0], frame.get("retry_after_ms", 0) / 1000 + random.random()
            later(delay, lambda: asyncio.ensure_future(self.send(request)))
        elif kind in ("reject", "vol"):
            (self.answer if kind == "reject" else self.handler)(frame)
        elif kind == "ping":
            await self.send({"t": "pong", "echo": frame.get("echo", 0)})
        elif kind == "goaway":
            later(random.random() * frame.get("reconnect_within_ms", 0) / 1000, socket.transport.close)
        elif kind == "close":
            self.retry_after = frame.get("retry_after_ms", 0) / 1000  # the connection ends now

    async def welcome(self, frame: Frame, socket: ClientConnection) -> None:
        old, cursor = self.resume, (self.resume if frame["result"] == "resumed" else frame)["cursor"]
        self.resume = {"sid": frame["sid"], "secret": frame["secret"], "cursor": cursor}
        self.socket, self.failures, self.silence = socket, 0, (frame["heartbeat_ms"] + frame["pong_ms"]) / 1000 + 2
        if frame["result"] == "reset":
            self.handler(frame)
        for rid in list(self.open) if old and old["sid"] != frame["sid"] else []:  # nobody knows what became of them
            self.answer({"rid": rid, "code": 500, "error": "the session is lost; it may have run"})
        done = [one["rid"] for one in frame.get("open", []) if one["state"] == "done"]
        await self.send(*(request for rid, (request, _) in self.open.items() if rid not in done))

    def answer(self, frame: Frame) -> None:
        _, answer = self.open.pop(frame["rid"], (None, None))
        if answer and frame.get("code"):
            answer.set_exception(RuntimeError(f"{frame['code']} {frame.get('error')}"))
        elif answer:
            answer.set_result(frame.get("body"))
