"""WebSocket by picows, both ends: subprotocol, origin, fragments, limits, back-pressure and close codes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection
from typing import Any, Literal

from picows import (
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
    ws_create_server,
)

from veredus import forks
from veredus.link.transports.base import (
    ABNORMAL,
    CLOSE_GRACE,
    HIGH_WATER,
    LOW_WATER,
    AcceptGate,
    Handler,
    HandlerFactory,
    Listener,
    Transport,
)
from veredus.model.frames import MAX_BATCH, MAX_FRAME_FROM_SERVER, SUBPROTOCOL, SUBPROTOCOL_JSON, CloseCode

logger = logging.getLogger("veredus.link")
# the library tells of every connection and of every fault of a client: nobody may fill our logs from outside
_quiet = logging.getLogger("veredus.link.picows")
_quiet.setLevel(logging.CRITICAL + 1)

_ENCODINGS: dict[str, Literal["protobuf", "json"]] = {SUBPROTOCOL: "protobuf", SUBPROTOCOL_JSON: "json"}
_SUBPROTOCOLS = {encoding: name for name, encoding in _ENCODINGS.items()}
_DATA = (WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.CONTINUATION)
_HTTP_BUFFER = 4096


class WebSocketTransport(WSListener):
    """One connection: picows calls it, the handler is called by it."""

    kind: Literal["websocket"] = "websocket"

    def __init__(self, handler: Handler, encoding: Literal["protobuf", "json"], max_message: int) -> None:
        self.encoding = encoding
        self.peer = ""
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
        if kind in _DATA:
            if self._sent_code is None:
                self._take(kind, frame)
        elif kind == WSMsgType.PING:
            # answered only while the peer reads: the answers to many pings would fill our memory
            if self.unsent < LOW_WATER:
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            code = int(frame.get_close_code()) or 1005  # type: ignore[call-overload]
            self._came_code = code, frame.get_close_reason() or ""
            if self._sent_code is None:
                transport.send_close(code if code != 1005 else 1000)  # type: ignore[arg-type]
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._ended = True
        self._fragments.clear()
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

    def _take(self, kind: WSMsgType, frame: WSFrame) -> None:
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.close(CloseCode.BAD_FRAME, "no extension was agreed")
        elif (kind == WSMsgType.CONTINUATION) != bool(self._fragments):
            self.close(CloseCode.BAD_FRAME, "fragments out of order")
        elif kind not in (self._type, WSMsgType.CONTINUATION):
            self.close(CloseCode.BAD_FRAME, f"{self._type.name.lower()} messages were agreed")
        elif self._fragmented + frame.payload_size > self._max_message:
            self.close(CloseCode.TOO_LARGE, f"messages may have {self._max_message:,} bytes")
        elif frame.fin and not self._fragments:
            self._call(self._handler.received, self, frame.get_payload_as_bytes())
        else:
            self._fragments.append(frame.get_payload_as_bytes())
            # an empty fragment counts too: its list entry takes room
            self._fragmented += frame.payload_size + 64
            if frame.fin:
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
        if self._gate(transport.peer):
            transport._handler = self._handler_factory()
            transport._handler.opened(transport)
        else:
            transport.close(CloseCode.SERVER_OVERLOADED, "too many connections")


class WebSocketListener:
    """An open port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    async def close(self) -> None:
        self._server.close()


async def listen_websocket(
    host: str,
    port: int,
    handler_factory: HandlerFactory,
    *,
    tls: ssl.SSLContext | None = None,
    path: str = "/",
    origins: Collection[str] | None = None,
    max_message: int = MAX_BATCH,
    reuse_port: bool = False,
    accept: AcceptGate | None = None,
    handshake_timeout: float = 5.0,
) -> Listener:
    """Listen. `origins`: allowed Origin headers of browsers (None: any; clients that send none always pass)."""

    def answer(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        if request.path.split(b"?")[0].decode("latin-1") != path:
            return _refuse(404, b"no gateway here")
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        chosen = next((name for name in offered if name in _ENCODINGS), None)
        if chosen is None:
            return _refuse(400, f"offer a subprotocol: {' or '.join(_ENCODINGS)}".encode())
        origin = request.headers.get("Origin")
        handler: Handler
        if origins is not None and origin is not None and origin not in origins:
            handler = _Turned(CloseCode.ORIGIN_FORBIDDEN, "this origin is not allowed")
        elif accept is not None:
            handler = _Gated(accept, handler_factory)
        else:
            handler = handler_factory()
        transport = WebSocketTransport(handler, _ENCODINGS[chosen], max_message)
        response = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": chosen})
        return WSUpgradeResponseWithListener(response, transport)

    server = await ws_create_server(
        answer,
        host,
        port,
        ssl=tls,
        reuse_port=reuse_port or None,
        backlog=1024,
        max_frame_size=max_message,
        websocket_handshake_timeout=handshake_timeout,
        enable_auto_pong=False,
        read_buffer_init_size=_HTTP_BUFFER,
        logger_name=_quiet,
    )
    return WebSocketListener(server)


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
