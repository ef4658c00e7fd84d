"""What the gateway's tests share: a gateway in this loop, and a JSON client made of nothing but a WebSocket library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import websockets.asyncio.client
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support.waiting import PATIENCE
from veredus import App
from veredus.gateway.gateway import Gateway

SETTINGS: dict[str, Any] = {"ws": "127.0.0.1:0", "quic": "off", "http": "off", "drain": 0.2}


def gateway(app: App, **settings: Any) -> Gateway:
    return app.gateway(**{**SETTINGS, **settings})


class JsonClient:
    """Speaks the JSON encoding by hand, with frames as dictionaries: an opinion of its own about the protocol."""

    def __init__(self, socket: websockets.asyncio.client.ClientConnection) -> None:
        self._socket = socket
        self._frames: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.welcome: dict[str, Any] = {}
        self.cursor: dict[str, Any] = {}

    @classmethod
    async def connect(cls, gateway: Gateway | str, **options: Any) -> JsonClient:
        url = gateway if isinstance(gateway, str) else f"ws://{gateway.ws_address}/"
        socket = await websockets.asyncio.client.connect(
            url, subprotocols=[Subprotocol("veredus.gw.1.json")], compression=None, ping_interval=None, **options
        )
        return cls(socket)

    @classmethod
    async def open(
        cls, gateway: Gateway | str, token: str = "", resume: dict[str, Any] | None = None, **hello: Any
    ) -> JsonClient:
        """Connected and welcomed."""
        client = await cls.connect(gateway)
        await client.hello(token, resume, **hello)
        return client

    async def hello(self, token: str = "", resume: dict[str, Any] | None = None, **hello: Any) -> dict[str, Any]:
        frame: dict[str, Any] = {"t": "hello", "version": 1, "token": token, **hello}
        if resume is not None:
            frame["resume"] = resume
        await self.send(frame)
        self.welcome = await self.frame("welcome")
        self.cursor = self.welcome["cursor"]
        return self.welcome

    @property
    def sid(self) -> str:
        return str(self.welcome["sid"])

    def resumption(self, **changed: Any) -> dict[str, Any]:
        return {"sid": self.sid, "secret": self.welcome["secret"], "cursor": self.cursor, **changed}

    async def send(self, *frames: dict[str, Any]) -> None:
        await self._socket.send("".join(json.dumps(frame) + "\n" for frame in frames))

    async def request(self, rid: int, action: str, body: Any = None, **more: Any) -> None:
        await self.send({"t": "request", "rid": rid, "action": action, "body": body, **more})

    async def ack(self, seq: int | None = None, rid_floor: int = 0) -> None:
        await self.send({"t": "ack", "seq": self.cursor["seq"] if seq is None else seq, "rid_floor": rid_floor})

    async def next(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next frame, whatever it is; pings are answered by the way."""
        async with asyncio.timeout(seconds):
            while (frame := await self.heard(seconds))["t"] == "ping":
                pass
            return frame

    async def heard(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next frame, pings too."""
        async with asyncio.timeout(seconds):
            while not self._frames:
                text = await self._socket.recv()
                assert isinstance(text, str)
                self._frames = [json.loads(line) for line in text.splitlines() if line]
            frame = self._frames.pop(0)
            if frame["t"] == "ping":
                await self.send({"t": "pong", "echo": frame.get("echo", 0)})
            elif frame["t"] == "msg":
                self.messages.append(frame)
                self.cursor = {"epoch": self.cursor["epoch"], "seq": frame["seq"], "ts": frame["ts"]}
            return frame

    async def frame(self, kind: str, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """The next frame of this kind and with these fields; what comes before it is noted and passed over."""
        async with asyncio.timeout(seconds):
            while True:
                frame = await self.next(seconds)
                if frame["t"] == kind and all(frame.get(name) == value for name, value in fields.items()):
                    return frame

    async def take(self, count: int, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """The next so many messages."""
        return [await self.frame("msg", seconds) for _ in range(count)]

    async def close_code(self, seconds: float = PATIENCE) -> int:
        """Read to the end: with which code it came."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self.next(seconds)
        except ConnectionClosed as exc:
            return exc.rcvd.code if exc.rcvd is not None else 1006

    async def close(self) -> None:
        await self._socket.close()

    def cut(self) -> None:
        """As a broken network would."""
        self._socket.transport.abort()
