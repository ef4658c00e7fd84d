"""WebSocketTransport: one WebSocket connection on picows, with fragments, limits, back-pressure and close codes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from picows import WSFrame, WSListener, WSMsgType, WSTransport

from veredus.link.transports.base import ABNORMAL, CLOSE_GRACE, HIGH_WATER, LOW_WATER, Handler, Transport
from veredus.link.transports.tcp_acceptor import AcceptedSocket
from veredus.model.bucket import Bucket
from veredus.model.frames import CloseCode, close_reason
from veredus.process import forks

logger = logging.getLogger("veredus.link")

_DATA = (WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.CONTINUATION)
_READ_AT_ONCE = 32 * 1024  # bytes of one connection in one turn of the loop
_FRAMES_AT_ONCE = 64  # frames of one client in one turn of the loop
_IGNORED_AFTER_CLOSE = 64  # frames ignored after our close; then reading stops
_CONTROL_BURST = 10  # a burst of control frames may use the rate of this many seconds


class WebSocketTransport(WSListener):
    """One connection. picows calls it, and it calls the handler."""

    kind: Literal["websocket"] = "websocket"

    def __init__(
        self,
        handler: Handler,
        encoding: Literal["protobuf", "json"],
        max_message: int,
        *,
        control_rate: float | None = None,
        accepted: AcceptedSocket | None = None,
    ) -> None:
        """`control_rate`: pings, pongs and fragments per second that the peer may send; None means unlimited."""
        self.encoding = encoding
        self.peer = ""
        self.host = accepted.host if accepted is not None else ""
        now = asyncio.get_running_loop().time()
        self._control = None if control_rate is None else Bucket(control_rate, control_rate * _CONTROL_BURST, now)
        self._turn = 0.0  # the loop's time of this turn
        self._read = self._frames = 0  # bytes and frames in this turn
        self._max_frames = math.inf if control_rate is None else _FRAMES_AT_ONCE
        self._between_reads = True
        self._queued: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()  # frames for the next turn
        self._ignored = 0
        self._handler = handler
        self._max_message = max_message
        self._type = WSMsgType.BINARY if encoding == "protobuf" else WSMsgType.TEXT
        self._ws: WSTransport | None = None
        self._out: asyncio.Transport | None = None
        self._fragments: list[bytes] = []
        self._fragmented = 0
        self._sent_code: tuple[int, str] | None = None
        self._received_code: tuple[int, str] | None = None
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
        self._ws.send_close(code, close_reason(reason).encode())  # type: ignore[arg-type]
        # the peer answers with its own close frame; a peer that does not read is cut off after this time
        self._grace = asyncio.get_running_loop().call_later(CLOSE_GRACE, self._ws.disconnect, False)

    def replace_handler(self, handler: Handler) -> None:
        """Called by the current handler when the connection opens."""
        self._handler = handler
        handler.opened(self)

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
        forks.register(self)
        self._call(self._handler.opened, self)

    def forked(self) -> None:
        """Drop the socket in a forked child: it belongs to the parent."""
        if not self._ended:
            forks.close_socket(self._out)
        forks.leak(self._ws, self._out, self._handler)
        self._ended, self._ws, self._out, self._handler = True, None, None, NO_HANDLER

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._sent_code is not None and kind != WSMsgType.CLOSE:
            self._ignored += 1
            if self._ignored == _IGNORED_AFTER_CLOSE and self._out is not None:
                self._out.pause_reading()  # the close timer ends the connection
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
            step = self._is_flooding
        elif kind == WSMsgType.CLOSE:
            code = int(frame.get_close_code()) or 1005  # type: ignore[call-overload]
            step, arguments = self._answer_close, (code, frame.get_close_reason() or "")
        else:
            return
        if self._queued or self._frames > self._max_frames:
            self._queued.append((step, arguments))
        else:
            step(*arguments)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._ended = True
        self._fragments.clear()
        self._queued.clear()
        if self._grace is not None:
            self._grace.cancel()
        code, reason = self._sent_code or self._received_code or self._protocol_error(transport) or (ABNORMAL, "")
        handler, self._handler = self._handler, NO_HANDLER
        try:
            handler.closed(self, code, reason)
        except Exception:  # a failing handler must not break the transport
            logger.exception("a handler failed at the end of a connection")

    def resume_writing(self) -> None:
        self._call(self._handler.writable, self)

    def pause_writing(self) -> None:
        """Nothing to do: the handler checks `unsent`."""

    # ---- within

    def _is_flooding(self) -> bool:
        """Count a control frame or fragment. Too many of them end the connection."""
        if self._control is None or not self._control.take(asyncio.get_running_loop().time()):
            return False
        self.close(CloseCode.RATE_LIMITED, "too many pings, pongs or fragments")
        return True

    def _count(self, size: int, last_in_buffer: bool) -> None:
        """Limit the work of one connection in one turn of the loop: above the limit, stop reading until the next turn
        and queue what was already read. The turn is recognized by the loop's time, because some loops read several
        times in one turn."""
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
            asyncio.get_running_loop().call_soon(self._continue)

    def _within_turn(self) -> bool:
        return self._read <= _READ_AT_ONCE and self._frames <= self._max_frames

    def _continue(self) -> None:
        """In the next turn, handle the queued frames first, then resume reading."""
        self._read = self._frames = 0
        while self._queued and self._frames < self._max_frames and not self._ended:
            self._frames += 1
            step, arguments = self._queued.popleft()
            if self._sent_code is None or step == self._answer_close:
                step(*arguments)
        if self._out is None or self._ended:
            return
        if self._queued:
            asyncio.get_running_loop().call_soon(self._continue)
        elif self._ignored < _IGNORED_AFTER_CLOSE:
            self._out.resume_reading()

    def _answer_ping(self, payload: bytes) -> None:
        """Answer only while the peer reads, so that many pings cannot fill the memory."""
        if not self._is_flooding() and self.unsent < LOW_WATER and self._ws is not None:
            self._ws.send_pong(payload)

    def _answer_close(self, code: int, reason: str) -> None:
        self._received_code = code, reason
        if self._ws is None:
            return
        if self._sent_code is None:
            self._ws.send_close(code if code != 1005 else 1000)  # type: ignore[arg-type]
        self._ws.disconnect()

    def _take(self, kind: WSMsgType, payload: bytes, fin: bool, rsv: bool) -> None:
        if rsv:
            self.close(CloseCode.BAD_FRAME, "no extension was negotiated")
        elif (kind == WSMsgType.CONTINUATION) != bool(self._fragments):
            self.close(CloseCode.BAD_FRAME, "fragments out of order")
        elif kind not in (self._type, WSMsgType.CONTINUATION):
            self.close(CloseCode.BAD_FRAME, f"{self._type.name.lower()} messages were negotiated")
        elif self._fragmented + len(payload) > self._max_message:
            self.close(CloseCode.TOO_LARGE, f"a message may have at most {self._max_message:,} bytes")
        elif fin and not self._fragments:
            self._call(self._handler.received, self, payload)
        elif not self._is_flooding():
            self._fragments.append(payload)
            # an empty fragment counts too: its list entry uses memory
            self._fragmented += len(payload) + 64
            if fin:
                message = b"".join(self._fragments)
                self._fragments.clear()
                self._fragmented = 0
                self._call(self._handler.received, self, message)

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:  # a bug in a handler closes one connection only
            logger.exception("a handler failed; its connection is closed")
            self.close(CloseCode.INTERNAL, "internal error")

    @staticmethod
    def _protocol_error(transport: WSTransport) -> tuple[int, str] | None:
        """The close code that picows sent: 1002 protocol error, 1007 invalid text, 1009 too large."""
        ending = transport.close_handshake
        if ending is None or ending.sent is None:
            return None
        return int(ending.sent.code), ending.sent.reason or ""  # type: ignore[call-overload]


class NoHandler:
    """Replaces the handler of an ended connection, so that the handler can be freed."""

    def opened(self, transport: Transport) -> None: ...
    def received(self, transport: Transport, data: bytes) -> None: ...
    def writable(self, transport: Transport) -> None: ...
    def closed(self, transport: Transport, code: int, reason: str) -> None: ...


NO_HANDLER = NoHandler()
