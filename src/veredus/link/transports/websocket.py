"""WebSocket on picows: the listener with its checks of path, origin and subprotocol, and the client's connect."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import math
import ssl
from collections.abc import Callable, Collection
from typing import Any, Literal

from picows import (
    WSAutoPingStrategy,
    WSHandshakeError,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from veredus.link.transports.base import AcceptGate, Admission, Handler, HandlerFactory, Listener, Transport
from veredus.link.transports.tcp_acceptor import AcceptedSocket, TcpAcceptor, bind
from veredus.link.transports.websocket_transport import NoHandler, WebSocketTransport
from veredus.model.frames import MAX_BATCH, MAX_FRAME_FROM_SERVER, SUBPROTOCOL, SUBPROTOCOL_JSON, Close, CloseCode
from veredus.wire.frames import codec

# picows logs every connection and every client error: clients must not be able to fill our logs
_quiet = logging.getLogger("veredus.link.picows")
_quiet.setLevel(logging.CRITICAL + 1)

_ENCODINGS: dict[str, Literal["protobuf", "json"]] = {SUBPROTOCOL: "protobuf", SUBPROTOCOL_JSON: "json"}
_SUBPROTOCOLS = {encoding: name for name, encoding in _ENCODINGS.items()}
_HTTP_BUFFER = 4096
CONTROL_RATE = 100.0  # pings, pongs and fragments per second


class _RefusingHandler:
    """Closes a connection as soon as it is open, because a browser shows close codes but no HTTP status."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        self._code, self._reason = code, reason

    def opened(self, transport: Transport) -> None:
        transport.close(self._code, self._reason)

    def received(self, transport: Transport, data: bytes) -> None: ...
    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


class _GatedHandler(NoHandler):
    """Asks the gate once the address is known, then installs the real handler."""

    def __init__(self, gate: AcceptGate, handler_factory: HandlerFactory) -> None:
        self._gate, self._handler_factory = gate, handler_factory

    def opened(self, transport: Transport) -> None:
        if not isinstance(transport, WebSocketTransport):
            raise TypeError(f"a WebSocket transport is needed, not {transport!r}")
        wait = self._gate(transport.peer)
        if not wait:
            transport.replace_handler(self._handler_factory())
            return
        refusal = Close(CloseCode.SERVER_OVERLOADED, "too many connections", math.ceil(wait * 1000))
        transport.send([codec(transport.encoding).encode(refusal)])
        transport.close(refusal.code, refusal.reason)


class _Protocol(WSProtocol):  # type: ignore[misc]
    """picows' server protocol. `tests/transports/test_libraries.py` lists the internals that this relies on."""

    def __init__(self, accepted: AcceptedSocket, answer: Any, max_message: int) -> None:
        super().__init__(
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=answer,
            logger=_quiet,
            disconnect_on_exception=True,
            websocket_handshake_timeout=None,  # the acceptor has a deadline
            enable_auto_ping=False,
            auto_ping_idle_timeout=20,
            auto_ping_reply_timeout=20,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=False,
            max_frame_size=max_message,
            extra_headers=None,
            read_buffer_init_size=_HTTP_BUFFER,
        )
        self._accepted = accepted

    def connection_made(self, transport: Any) -> None:
        self._accepted.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.end()
        super().connection_lost(exc)


class WebSocketListener:
    """An open port. Decides which connections are admitted and creates their handlers."""

    def __init__(
        self,
        handler_factory: HandlerFactory,
        *,
        path: str,
        allowed: Callable[[str], bool],
        max_message: int,
        accept: AcceptGate | None,
        admission: Admission | None,
        control_rate: float,
    ) -> None:
        self._handler_factory = handler_factory
        self._path = path
        self._allowed = allowed
        self._max_message = max_message
        self._accept = accept
        self._admission = admission
        self._control_rate = control_rate
        self._acceptor: TcpAcceptor
        self.address: tuple[str, int]

    async def open(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, reuse_port: bool, deadline: float
    ) -> None:
        sockets = await bind(host, port, reuse_port=reuse_port)
        self.address = sockets[0].getsockname()[:2]
        self._acceptor = TcpAcceptor(sockets, self._protocol, admission=self._admission, tls=tls, deadline=deadline)

    async def close(self) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()

    def _protocol(self, accepted: AcceptedSocket) -> _Protocol:
        return _Protocol(accepted, functools.partial(self._answer, accepted), self._max_message)

    def _answer(self, accepted: AcceptedSocket, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        if request.path.split(b"?")[0].decode("latin-1") != self._path:
            return _refuse(404, b"no gateway at this path")
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        chosen = next((name for name in offered if name in _ENCODINGS), None)
        if chosen is None:
            return _refuse(400, f"missing subprotocol, expected {' or '.join(_ENCODINGS)}".encode())
        handler = self._handler(accepted, request)
        transport = WebSocketTransport(
            handler, _ENCODINGS[chosen], self._max_message, control_rate=self._control_rate, accepted=accepted
        )
        accepted.admit()
        response = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": chosen})
        return WSUpgradeResponseWithListener(response, transport)

    def _handler(self, accepted: AcceptedSocket, request: WSUpgradeRequest) -> Handler:
        origin = request.headers.get("Origin")
        if origin is not None and not self._allowed(origin):
            return _RefusingHandler(CloseCode.ORIGIN_FORBIDDEN, "this origin is not allowed")
        if self._admission is not None and self._admission.is_proxy(accepted.host):
            client = _forwarded(request.headers.getall("X-Forwarded-For", []), self._admission)
            if client and not accepted.count_client(client):
                return _RefusingHandler(CloseCode.SERVER_OVERLOADED, "too many connections from this address")
        return self._handler_factory() if self._accept is None else _GatedHandler(self._accept, self._handler_factory)


def _forwarded(headers: list[str], admission: Admission) -> str:
    """The client's address: the last one in X-Forwarded-For that is not a trusted proxy. A client can forge everything
    before it."""
    for text in reversed([part.strip() for header in headers for part in header.split(",")]):
        try:
            host = str(ipaddress.ip_address(_without_port(text)))
        except ValueError:
            return ""
        if not admission.is_proxy(host):
            return host
    return ""


def _without_port(text: str) -> str:
    """Some proxies write the client's port too: 192.0.2.7:1234 or [2001:db8::7]:1234."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


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
    admission: Admission | None = None,
    handshake_timeout: float = 5.0,
    control_rate: float = CONTROL_RATE,
) -> Listener:
    """Listen. `origins`: the allowed Origin headers, or a function that checks one; None allows any. Clients without
    the header are always allowed. `handshake_timeout`: seconds for TLS and the upgrade together."""
    listener = WebSocketListener(
        handler_factory,
        path=path,
        allowed=_allowing(origins),
        max_message=max_message,
        accept=accept,
        admission=admission,
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
    """Connect to ws:// or wss://. Returns after `handler.opened` was called. Raises OSError if it cannot connect."""
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
        raise ConnectionRefusedError(f"{url} is not a gateway: {error}") from error
    except TimeoutError:
        raise TimeoutError(f"{url} did not answer within {timeout:g} s") from None
    return transport
