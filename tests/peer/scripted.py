"""A scripted gateway on real transports: a log per session in memory, and faults on demand."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from veredus.link.transports.base import Listener, Transport
from veredus.link.transports.quic import listen_quic
from veredus.link.transports.websocket import listen_websocket
from veredus.model.delivery import Cursor
from veredus.model.frames import (
    MAX_FRAME_FROM_CLIENT,
    Accept,
    Ack,
    Bye,
    Close,
    Frame,
    Hello,
    Join,
    Kind,
    Leave,
    Message,
    OpenRequest,
    Pong,
    Reject,
    Request,
    Volatile,
    Welcome,
)
from veredus.wire.frames import codec


@dataclass
class Session:
    sid: str
    epoch: str
    log: dict[int, Message] = field(default_factory=dict)
    top: int = 0
    acked: int = 0
    rid_floor: int = 0
    secrets: list[str] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)
    wire: Wire | None = None
    mute: bool = False


class Wire:
    """One connection: a transport's handler."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self.session: Session | None = None

    def opened(self, transport: Transport) -> None:
        self.transport = transport
        self.codec = codec(transport.encoding)
        self.decoder = self.codec.decoder(MAX_FRAME_FROM_CLIENT)
        self.gateway.wires.append(self)

    def received(self, transport: Transport, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.gateway.frames.append(frame)
            self.gateway.take(self, frame)

    def writable(self, transport: Transport) -> None:
        pass

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        self.gateway.wires.remove(self)
        self.gateway.closes.append((code, reason))

    def send(self, *frames: Frame) -> None:
        self.transport.send([b"".join(self.codec.encode(frame) for frame in frames)])

    def refuse(self, code: int, retry_after_ms: int = 0) -> None:
        self.send(Close(code, "scripted", retry_after_ms))
        self.transport.close(code, "scripted")


class ScriptedGateway:
    def __init__(self, kind: str = "ws") -> None:
        self.kind = kind
        self.sessions: dict[str, Session] = {}
        self.wires: list[Wire] = []
        self.frames: list[Frame] = []
        self.closes: list[tuple[int, str]] = []
        self.ran: list[int] = []
        self.actions: dict[str, Callable[..., Any]] = {"echo": lambda body: body}
        self.refusals: list[tuple[int, int]] = []
        """(close code, retry after in ms) for the next hellos."""
        self.reset = ""
        """Reason: answer the next resume with a reset."""
        self.silent = False
        self.deaf = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> ScriptedGateway:
        listen = listen_quic if self.kind == "quic" else listen_websocket
        self.listener: Listener = await listen("127.0.0.1", port, lambda: Wire(self))
        self.port = self.listener.address[1]
        self.url = f"{self.kind}://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        self.cut_all()
        for task in self.tasks:
            task.cancel()
        await self.listener.close()

    def cut_all(self) -> None:
        for wire in list(self.wires):
            wire.transport.abort()

    @property
    def session(self) -> Session:
        return list(self.sessions.values())[-1]

    @property
    def hellos(self) -> list[Hello]:
        return [frame for frame in self.frames if isinstance(frame, Hello)]

    @property
    def requests(self) -> list[Request]:
        return [frame for frame in self.frames if isinstance(frame, Request)]

    def push(self, data: Any = None, session: Session | None = None, **fields: Any) -> int:
        session = session or self.session
        session.top += 1
        body = json.dumps(data).encode() if data is not None else b""
        message = Message(**{"seq": session.top, "ts": session.top * 1000, "body": body, **fields})
        session.log[session.top] = message
        if session.wire is not None and session.wire in self.wires and not session.mute:
            session.wire.send(message)
        return session.top

    def take(self, wire: Wire, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._hello(wire, frame)
            return
        session = wire.session
        assert session is not None
        if isinstance(frame, Ack | Pong):
            session.acked = max(session.acked, frame.seq)
            session.rid_floor = getattr(frame, "rid_floor", session.rid_floor)
        elif isinstance(frame, Join | Leave):
            refused = frame.group == "secret"
            body = {"group": frame.group, "joined": isinstance(frame, Join) and not refused, "code": refused and 403}
            wire.send(Volatile("veredus.group", json.dumps(body).encode()))
        elif isinstance(frame, Bye):
            del self.sessions[session.sid]
        elif isinstance(frame, Request) and not self.deaf:
            task = asyncio.get_running_loop().create_task(self._request(session, wire, frame))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _request(self, session: Session, wire: Wire, frame: Request) -> None:
        if frame.action not in self.actions:
            wire.send(Reject(frame.rid, 404, error=f"no action {frame.action}"))
            return
        wire.send(Accept(frame.rid))
        if frame.rid in session.known:
            return
        session.known[frame.rid] = "open"
        self.ran.append(frame.rid)
        body = frame.body if frame.encoding == "raw" else json.loads(frame.body) if frame.body else None
        code, error, answer = 0, "", None
        try:
            answer = self.actions[frame.action](body)
            if inspect.isawaitable(answer):
                answer = await answer
        except ValueError as exc:
            code, error = 503, str(exc)
        session.known[frame.rid] = "done"
        if isinstance(answer, bytes):
            self.push(None, session, kind=Kind.RESPONSE, rid=frame.rid, body=answer, encoding="raw")
        else:
            self.push(answer, session, kind=Kind.RESPONSE, rid=frame.rid, code=code, error=error)

    def _hello(self, wire: Wire, hello: Hello) -> None:
        if self.silent:
            return
        if self.refusals:
            wire.refuse(*self.refusals.pop(0))
            return
        resume = hello.resume
        session = self.sessions.get(resume.sid) if resume else None
        result, reason = ("resumed" if session else "reset" if resume else "new"), ("unknown" if resume else "")
        if session is None:
            session = Session(f"p001-{secrets.token_hex(10)}", secrets.token_hex(4))
            self.sessions[session.sid] = session
        elif resume and resume.secret not in session.secrets:
            wire.refuse(4501)
            return
        base = (
            Cursor(session.epoch, *resume.cursor[1:]) if resume and result == "resumed" else Cursor(session.epoch, 0, 0)
        )
        if result == "resumed" and self.reset:
            result, reason, self.reset = "reset", self.reset, ""
            session.epoch = secrets.token_hex(4)
            base = Cursor(session.epoch, session.acked, session.acked * 1000)
        # The welcome with the new one may be lost: the one that was shown stays good.
        session.secrets = [secrets.token_hex(8), resume.secret if resume else ""]
        session.wire, wire.session = wire, session
        opened = tuple(OpenRequest(rid, state) for rid, state in session.known.items())
        welcome = Welcome(session.sid, session.secrets[0], result, reason, base, session.top, "n1", open=opened)
        wire.send(welcome, *[message for seq, message in sorted(session.log.items()) if seq > base.seq])
