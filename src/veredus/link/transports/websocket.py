"""WebSocket by picows, both ends: subprotocol, origin, fragments, limits, back-pressure and close codes."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Literal

from picows import (
    WSAutoPingStrategy,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from veredus import forks
from veredus.link.transports.base import (
    ABNORMAL,
    CLOSE_GRACE,
    HIGH_WATER,
    LOW_WATER,
    AcceptGate,
    Doorkeeper,
    Handler,
    HandlerFactory,
    Listener,
    Transport,
)
from veredus.link.transports.door import Door, Visit, bind
from veredus.model.bucket import Bucket
from veredus.model.frames import MAX_BATCH, MAX_FRAME_FROM_SERVER, SUBPROTOCOL, SUBPROTOCOL_JSON, Close, CloseCode
from veredus.wire.frames import codec

logger = logging.getLogger("veredus.link")
# the library tells of every connection and of every fault of a client: nobody may fill our logs from outside
_quiet = logging.getLogger("veredus.link.picows")
_quiet.setLevel(logging.CRITICAL + 1)

_ENCODINGS: dict[str, Literal["protobuf", "json"]] = {SUBPROTOCOL: "protobuf", SUBPROTOCOL_JSON: "json"}
_SUBPROTOCOLS = {encoding: name for name, encoding in _ENCODINGS.items()}
_DATA = (WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.CONTINUATION)
_HTTP_BUFFER = 4096
_READ_AT_ONCE = 32 * 1024  # bytes of one connection in one turn of the loop; then others have theirs
_FRAMES_AT_ONCE = 64  # frames of a client likewise
_HEARD_AFTER_CLOSE = 64  # frames of a peer that goes on sending after our close; then nothing is read any more
CONTROL_RATE = 100.0  # pings, pongs and fragments per second
_CONTROL_BURST = 10  # seconds' worth of them


class WebSocketTransport(WSListener):
    """One connection: picows calls it, the handler is called by it."""

    kind: Literal["websocket"] = "websocket"

    def __init__(
        self,
        handler: Handler,
        encoding: Literal["protobuf", "json"],
        max_message: int,
        *,
        control_rate: float | None = None,
        visit: Visit | None = None,
    ) -> None:
        """`control_rate`: pings, pongs and fragments per second that the peer may send; None for any number."""
        self.encoding = encoding
        self.peer = ""
        self.host = visit.host if visit is not None else ""
        now = asyncio.get_running_loop().time()
        self._control = None if control_rate is None else Bucket(control_rate, control_rate * _CONTROL_BURST, now)
        self._turn = 0.0  # the loop's time in this turn
        self._read = self._frames = 0  # bytes and frames in this turn
        self._most_frames = math.inf if control_rate is None else _FRAMES_AT_ONCE
        self._between_reads = True
        self._later: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()  # for the next turn
        self._heard = 0
        self._handler = handler
        self._max_message = max_message
        self._type = WSMsgType.BINARY if encoding == "protobuf" else WSMsgType.TEXT
        self._ws: WSTransport | None = None
        self._out: asyncio.Transport | None = None
        self._fragments: list[bytes] = []
        self._fragmented = 0
        self._sent_code: tuple[int, str] | None = None
        self._came_code: tuple[int, str] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._ended = False

    # ---- for the handler

    @property
    def unsent(self) -> int:
        return 0 if self._out is None else self._out.get_write_buffer_size()

    @property
    def closed(self) -> bool:
        return self._ended or self._sent_code is not None

    def send(self, chunks: Any) -> None:
        if self._ws is not None and not self.closed:
            for chunk in chunks:
                self._ws.send(self._type, chunk)

    def close(self, code: int, reason: str = "") -> None:
        if self._ws is None or self.closed:
            return
        self._sent_code = code, reason
        self._ws.send_close(code, reason.encode()[:120])  # type: ignore[arg-type]
        # the peer's own close frame ends it; a peer that does not read has this long
        self._grace = asyncio.get_running_loop().call_later(CLOSE_GRACE, self._ws.disconnect, False)

    def abort(self) -> None:
        if self._ws is not None and not self._ended:
            self._ws.disconnect(False)

    # ---- called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        self._out = transport.underlying_transport
        self._out.set_write_buffer_limits(high=HIGH_WATER - 1, low=LOW_WATER)
        name = self._out.get_extra_info("peername") or ("", 0)
        self.peer = f"{name[0]}:{name[1]}"
        self.host = self.host or name[0]
        forks.hold(self)
        self._call(self._handler.opened, self)

    def forked(self) -> None:
        """In a fork: the socket is the parent's."""
        if not self._ended:
            forks.cut(self._out)
        forks.leave(self._ws, self._out, self._handler)
        self._ended, self._ws, self._out, self._handler = True, None, None, _NOBODY

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._sent_code is not None and kind != WSMsgType.CLOSE:
            self._heard += 1
            if self._heard == _HEARD_AFTER_CLOSE and self._out is not None:
                self._out.pause_reading()  # the grace ends it
            return
        self._count(frame.payload_size, frame.last_in_buffer)
        step: Callable[..., object] = self._take
        arguments: tuple[Any, ...] = ()
        if kind in _DATA:
            rsv = frame.rsv1 or frame.rsv2 or frame.rsv3
            arguments = (kind, frame.get_payload_as_bytes(), frame.fin, rsv)
        elif kind == WSMsgType.PING:
            step, arguments = self._answer_ping, (frame.get_payload_as_bytes(),)
        elif kind == WSMsgType.PONG:
            step = self._floods
        elif kind == WSMsgType.CLOSE:
            code = int(frame.get_close_code()) or 1005  # type: ignore[call-overload]
            step, arguments = self._answer_close, (code, frame.get_close_reason() or "")
        else:
            return
        if self._later or self._frames > self._most_frames:
            self._later.append((step, arguments))
        else:
            step(*arguments)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._ended = True
        self._fragments.clear()
        self._later.clear()
        if self._grace is not None:
            self._grace.cancel()
        code, reason = self._sent_code or self._came_code or self._protocol_error(transport) or (ABNORMAL, "")
        handler, self._handler = self._handler, _NOBODY
        try:
            handler.closed(self, code, reason)
        except Exception:
            logger.exception("a handler failed at the end of a connection")

    def resume_writing(self) -> None:
        self._call(self._handler.writable, self)

    def pause_writing(self) -> None:
        """The handler looks at `unsent`."""

    # ---- within

    def _floods(self) -> bool:
        """Count what is no message. Too many end the connection."""
        if self._control is None or not self._control.take(asyncio.get_running_loop().time()):
            return False
        self.close(CloseCode.RATE_LIMITED, "too many pings, pongs or fragments")
        return True

    def _count(self, size: int, last_in_buffer: bool) -> None:
        """After so much in one turn of the loop, others have theirs first: nothing is read until the next one, and what
        has been read already waits. Some loops read many times in one turn, without asking their clock between."""
        if self._between_reads:
            now = asyncio.get_running_loop().time()
            if now != self._turn:
                self._turn, self._read, self._frames = now, 0, 0
        self._between_reads = last_in_buffer
        was_within = self._within_turn()
        self._read += size
        self._frames += 1
        if was_within and not self._within_turn() and self._out is not None:
            self._out.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _within_turn(self) -> bool:
        return self._read <= _READ_AT_ONCE and self._frames <= self._most_frames

    def _go_on(self) -> None:
        """The next turn: first what waits, then read on."""
        self._read = self._frames = 0
        while self._later and self._frames < self._most_frames and not self._ended:
            self._frames += 1
            step, arguments = self._later.popleft()
            if self._sent_code is None or step == self._answer_close:
                step(*arguments)
        if self._out is None or self._ended:
            return
        if self._later:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif self._heard < _HEARD_AFTER_CLOSE:
            self._out.resume_reading()

    def _answer_ping(self, payload: bytes) -> None:
        """Only while the peer reads: the answers to many pings would fill our memory."""
        if not self._floods() and self.unsent < LOW_WATER and self._ws is not None:
            self._ws.send_pong(payload)

    def _answer_close(self, code: int, reason: str) -> None:
        self._came_code = code, reason
        if self._ws is None:
            return
        if self._sent_code is None:
            self._ws.send_close(code if code != 1005 else 1000)  # type: ignore[arg-type]
        self._ws.disconnect()

    def _take(self, kind: WSMsgType, payload: bytes, fin: bool, rsv: bool) -> None:
        if rsv:
            self.close(CloseCode.BAD_FRAME, "no extension was agreed")
        elif (kind == WSMsgType.CONTINUATION) != bool(self._fragments):
            self.close(CloseCode.BAD_FRAME, "fragments out of order")
        elif kind not in (self._type, WSMsgType.CONTINUATION):
            self.close(CloseCode.BAD_FRAME, f"{self._type.name.lower()} messages were agreed")
        elif self._fragmented + len(payload) > self._max_message:
            self.close(CloseCode.TOO_LARGE, f"messages may have {self._max_message:,} bytes")
        elif fin and not self._fragments:
            self._call(self._handler.received, self, payload)
        elif not self._floods():
            self._fragments.append(payload)
            # an empty fragment counts too: its list entry takes room
            self._fragmented += len(payload) + 64
            if fin:
                message = b"".join(self._fragments)
                self._fragments.clear()
                self._fragmented = 0
                self._call(self._handler.received, self, message)

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            logger.exception("a handler failed; its connection is closed")
            self.close(CloseCode.INTERNAL, "internal error")

    @staticmethod
    def _protocol_error(transport: WSTransport) -> tuple[int, str] | None:
        """picows itself has refused what came: 1002 broken, 1007 no text, 1009 too large."""
        ending = transport.close_handshake
        if ending is None or ending.sent is None:
            return None
        return int(ending.sent.code), ending.sent.reason or ""  # type: ignore[call-overload]


class _Nobody:
    """Handler of a connection that is over, so that the one that was there can be freed."""

    def opened(self, transport: Transport) -> None: ...
    def received(self, transport: Transport, data: bytes) -> None: ...
    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


_NOBODY = _Nobody()


class _Turned:
    """Handler of a connection that is closed as soon as it is open: a browser sees close codes, but no HTTP status."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        self._code, self._reason = code, reason

    def opened(self, transport: Transport) -> None:
        transport.close(self._code, self._reason)

    def received(self, transport: Transport, data: bytes) -> None: ...
    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


class _Gated(_Nobody):
    """Asks the gate when the address is known; then the real handler takes over."""

    def __init__(self, gate: AcceptGate, handler_factory: HandlerFactory) -> None:
        self._gate, self._handler_factory = gate, handler_factory

    def opened(self, transport: Transport) -> None:
        assert isinstance(transport, WebSocketTransport)
        wait = self._gate(transport.peer)
        if not wait:
            transport._handler = self._handler_factory()
            transport._handler.opened(transport)
            return
        word = Close(CloseCode.SERVER_OVERLOADED, "too many connections", math.ceil(wait * 1000))
        transport.send([codec(transport.encoding).encode(word)])
        transport.close(word.code, word.reason)


class _Protocol(WSProtocol):  # type: ignore[misc]
    """picows' server side of one connection that the door accepted. `tests/transports/test_libraries.py` names what of
    picows' internals this relies on."""

    def __init__(self, visit: Visit, answer: Any, max_message: int) -> None:
        super().__init__(
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=answer,
            logger=_quiet,
            disconnect_on_exception=True,
            websocket_handshake_timeout=None,  # the door has a deadline
            enable_auto_ping=False,
            auto_ping_idle_timeout=20,
            auto_ping_reply_timeout=20,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=False,
            max_frame_size=max_message,
            extra_headers=None,
            read_buffer_init_size=_HTTP_BUFFER,
        )
        self._visit = visit

    def connection_made(self, transport: Any) -> None:
        self._visit.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._visit.end()
        super().connection_lost(exc)


class WebSocketListener:
    """An open port: who is let in, and with which handler."""

    def __init__(
        self,
        handler_factory: HandlerFactory,
        *,
        path: str,
        allowed: Callable[[str], bool],
        max_message: int,
        accept: AcceptGate | None,
        keeper: Doorkeeper | None,
        control_rate: float,
    ) -> None:
        self._handler_factory = handler_factory
        self._path = path
        self._allowed = allowed
        self._max_message = max_message
        self._accept = accept
        self._keeper = keeper
        self._control_rate = control_rate
        self._door: Door
        self.address: tuple[str, int]

    async def open(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, reuse_port: bool, deadline: float
    ) -> None:
        sockets = await bind(host, port, reuse_port=reuse_port)
        self.address = sockets[0].getsockname()[:2]
        self._door = Door(sockets, self._protocol, keeper=self._keeper, tls=tls, deadline=deadline)

    async def close(self) -> None:
        self._door.close()
        await self._door.wait_closed()

    def _protocol(self, visit: Visit) -> _Protocol:
        return _Protocol(visit, functools.partial(self._answer, visit), self._max_message)

    def _answer(self, visit: Visit, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        if request.path.split(b"?")[0].decode("latin-1") != self._path:
            return _refuse(404, b"no gateway here")
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        chosen = next((name for name in offered if name in _ENCODINGS), None)
        if chosen is None:
            return _refuse(400, f"offer a subprotocol: {' or '.join(_ENCODINGS)}".encode())
        handler = self._handler(visit, request)
        transport = WebSocketTransport(
            handler, _ENCODINGS[chosen], self._max_message, control_rate=self._control_rate, visit=visit
        )
        visit.let_in()
        response = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": chosen})
        return WSUpgradeResponseWithListener(response, transport)

    def _handler(self, visit: Visit, request: WSUpgradeRequest) -> Handler:
        origin = request.headers.get("Origin")
        if origin is not None and not self._allowed(origin):
            return _Turned(CloseCode.ORIGIN_FORBIDDEN, "this origin is not allowed")
        if self._keeper is not None and self._keeper.is_proxy(visit.host):
            client = _forwarded(request.headers.getall("X-Forwarded-For", []), self._keeper)
            if client and not visit.stands_for(client):
                return _Turned(CloseCode.SERVER_OVERLOADED, "too many connections from this address")
        return self._handler_factory() if self._accept is None else _Gated(self._accept, self._handler_factory)


def _forwarded(headers: list[str], keeper: Doorkeeper) -> str:
    """The client's address: the last one that a proxy of ours did not give for itself. What stands before it in the
    header may be the client's invention."""
    for text in reversed([part.strip() for header in headers for part in header.split(",")]):
        try:
            host = str(ipaddress.ip_address(text))
        except ValueError:
            return ""
        if not keeper.is_proxy(host):
            return host
    return ""


async def listen_websocket(
    host: str,
    port: int,
    handler_factory: HandlerFactory,
    *,
    tls: ssl.SSLContext | None = None,
    path: str = "/",
    origins: Collection[str] | Callable[[str], bool] | None = None,
    max_message: int = MAX_BATCH,
    reuse_port: bool = False,
    accept: AcceptGate | None = None,
    keeper: Doorkeeper | None = None,
    handshake_timeout: float = 5.0,
    control_rate: float = CONTROL_RATE,
) -> Listener:
    """Listen. `origins`: allowed Origin headers of browsers, or a function that says (None: any; clients that send none
    always pass). `handshake_timeout`: seconds for TLS and the upgrade together."""
    listener = WebSocketListener(
        handler_factory,
        path=path,
        allowed=_allowing(origins),
        max_message=max_message,
        accept=accept,
        keeper=keeper,
        control_rate=control_rate,
    )
    await listener.open(host, port, tls=tls, reuse_port=reuse_port, deadline=handshake_timeout)
    return listener


def _allowing(origins: Collection[str] | Callable[[str], bool] | None) -> Callable[[str], bool]:
    if origins is None:
        return lambda origin: True
    return origins if callable(origins) else origins.__contains__


def _refuse(status: int, text: bytes) -> WSUpgradeResponseWithListener:
    return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, text), None)


async def connect_websocket(
    url: str,
    handler: Handler,
    *,
    encoding: Literal["protobuf", "json"] = "protobuf",
    tls: ssl.SSLContext | None = None,
    origin: str | None = None,
    max_message: int = 2 * MAX_FRAME_FROM_SERVER,
    timeout: float = 10.0,
) -> Transport:
    """Connect to ws:// or wss://; `handler.opened` has been called when this returns. OSError if there is no way."""
    transport = WebSocketTransport(handler, encoding, max_message)
    headers = {"Sec-WebSocket-Protocol": _SUBPROTOCOLS[encoding]}
    if origin is not None:
        headers["Origin"] = origin
    try:
        async with asyncio.timeout(timeout):
            await ws_connect(
                lambda: transport,
                url,
                ssl_context=tls,
                extra_headers=headers,
                max_frame_size=max_message,
                websocket_handshake_timeout=timeout,
                enable_auto_pong=False,
                max_redirects=0,
                read_buffer_init_size=_HTTP_BUFFER * 4,
                logger_name=_quiet,
            )
    except WSHandshakeError as error:
        raise ConnectionRefusedError(f"{url} is no gateway: {error}") from error
    except TimeoutError:
        raise TimeoutError(f"{url} did not answer within {timeout:g} s") from None
    return transport
