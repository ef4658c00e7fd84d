"""QuicTransport: one QUIC connection with one stream: aioquic's state machine, our timers, limits and close codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from aioquic.quic import events
from aioquic.quic.connection import QuicConnection

from veredus.link.transports.base import ABNORMAL, CLOSE_GRACE, HIGH_WATER, LOW_WATER, Handler, HandlerFactory
from veredus.link.transports.quic_library import ending, is_handshake_complete, unconfirmed
from veredus.link.transports.quic_reset import is_reset
from veredus.model.frames import CloseCode, close_reason

logger = logging.getLogger("veredus.link")
STREAM = 0  # the client's first bidirectional stream, the only one in use
TRANSMIT_PAUSE = 0.001  # seconds between two flushes of a connection that is busy
UNANSWERED_PINGS = 2  # in a row; then the connection is closed
Address = tuple[Any, ...]


class QuicTransport:
    """Sends datagrams with `sendto` and calls `gone` when nothing is left to do."""

    kind: Literal["quic"] = "quic"
    encoding: Literal["protobuf"] = "protobuf"

    def __init__(
        self,
        quic: QuicConnection,
        handler_factory: HandlerFactory,
        sendto: Callable[[bytes, Address], None],
        gone: Callable[[QuicTransport], None],
        *,
        handshake_timeout: float,
        keepalive: float = 0.0,
    ) -> None:
        """`keepalive`: seconds of silence before a ping. Three unanswered pings end the connection."""
        self._loop = asyncio.get_running_loop()
        self._quic = quic
        self._handler_factory = handler_factory
        self._handler: Handler | None = None
        self._sendto = sendto
        self._gone = gone
        self._address: Address = ("", 0)  # the peer's current address; a client may move
        self._is_client = quic.configuration.is_client
        self._keepalive = keepalive
        self._opened = False
        self._ended = False
        self._forgotten = False
        self._closing: tuple[int, str] | None = None
        self._paused = False
        self._transmitting = False
        self._transmitted = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._last_in = self._loop.time()
        self._unanswered = 0
        self._grace: asyncio.TimerHandle | None = self._loop.call_later(handshake_timeout, self._not_opened)
        self._watch: asyncio.TimerHandle | None = None
        self.waiter: asyncio.Future[None] | None = None

    # ---- for the handler

    @property
    def peer(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def host(self) -> str:
        return str(self._address[0])

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not confirmed. aioquic buffers without a limit, so we count them."""
        return unconfirmed(self._quic, STREAM)

    @property
    def opened(self) -> bool:
        """Whether `handler.opened` was called."""
        return self._opened

    @property
    def ended(self) -> bool:
        """Whether `handler.closed` was called. The connection may still answer late packets."""
        return self._ended

    @property
    def closed(self) -> bool:
        return self._ended or self._closing is not None

    def send(self, chunks: Sequence[bytes]) -> None:
        if self._opened and not self.closed:
            self._quic.send_stream_data(STREAM, chunks[0] if len(chunks) == 1 else b"".join(chunks))
            if not self._paused and self.unsent >= HIGH_WATER:
                self._paused = True
            self.transmit_soon()

    def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        self._closing = code, reason
        self._cancel(self._grace)
        if self._opened and self.unsent:
            self._grace = self._loop.call_later(CLOSE_GRACE, self._close_now)
        else:
            self._close_now()

    def abort(self) -> None:
        self._end(ABNORMAL, "")
        self._forget()

    # ---- called by the port

    def datagram(self, data: bytes, address: Address) -> None:
        """Process a datagram for this connection."""
        if self._forgotten:
            return
        now = self._last_in = self._loop.time()
        self._unanswered = 0
        if self._is_client and is_reset(self._quic, data):
            self.abort()
            return
        try:
            self._quic.receive_datagram(data, address, now)
        except Exception:  # an error in aioquic must not break the port and its other connections
            logger.exception("a QUIC connection failed on a datagram and is dropped")
            self.abort()
            return
        self._take_events()
        self.transmit_soon()

    def transmit_soon(self) -> None:
        """Send at the end of this turn of the loop, or slightly later under load, so that many small writes share a
        packet: the cost is per packet, not per byte."""
        if self._transmitting:
            return
        self._transmitting = True
        due = self._transmitted + TRANSMIT_PAUSE
        if self._opened and due > self._loop.time():
            self._loop.call_at(due, self._transmit)
        else:
            self._loop.call_soon(self._transmit)

    # ---- within

    def _transmit(self) -> None:
        self._transmitting = False
        if self._forgotten:
            return
        now = self._transmitted = self._loop.time()
        datagrams = self._quic.datagrams_to_send(now)
        for data, address in datagrams:
            self._sendto(data, address)
            self._address = address
        self._sent(len(datagrams))
        self._arm()

    def _arm(self) -> None:
        """Set the timer. It is moved to earlier times only; if it fires too early, it is set again."""
        due = self._quic.get_timer()
        if due is None:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        due = self._quic.get_timer()
        now = self._loop.time()
        if due is None:
            return
        if now < due - 0.001:
            self._arm()
            return
        self._quic.handle_timer(max(now, due))
        self._take_events()
        self._transmit()

    def _take_events(self) -> None:
        quic = self._quic
        while (event := quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                self._take_data(event)
            elif isinstance(event, events.HandshakeCompleted):
                self._handshaken()
                if self._is_client:
                    quic.send_stream_data(STREAM, b"")
                    self._open()
            elif isinstance(event, events.ConnectionTerminated):
                self._end(*_ending(event))
                self._forget()
            elif isinstance(event, events.StreamReset | events.StopSendingReceived):
                self.close(CloseCode.BAD_FRAME, "the stream was cut off")
            elif isinstance(event, events.ConnectionIdIssued | events.ConnectionIdRetired):
                self._renamed(event)
        closing = ending(quic)
        if closing is not None and not self._ended:
            self._end(*_ending(closing))
        elif self._closing is not None and not self._ended and not self.unsent:
            self._close_now()
        elif self._paused and self.unsent <= LOW_WATER:
            self._paused = False
            if not self.closed and self._handler is not None:
                self._call(self._handler.writable, self)

    def _take_data(self, event: events.StreamDataReceived) -> None:
        if event.stream_id != STREAM:
            self.close(CloseCode.BAD_FRAME, "one stream per connection")
            return
        if not self._opened:
            self._open()
        if event.data and not self.closed and self._handler is not None:
            self._call(self._handler.received, self, event.data)
        if event.end_stream and not self.closed:
            self.close(1000, "the stream has ended")

    def _open(self) -> None:
        self._opened = True
        self._cancel(self._grace)
        self._handler = self._handler_factory()
        self._call(self._handler.opened, self)
        if self._keepalive:
            self._watch = self._loop.call_later(self._keepalive, self._check_alive)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _not_opened(self) -> None:
        if is_handshake_complete(self._quic):
            self.close(CloseCode.HELLO_TIMEOUT, "no stream was opened")
        else:
            self.abort()

    def _check_alive(self) -> None:
        if self._unanswered >= UNANSWERED_PINGS:  # counted, not timed: a suspended process has sent no pings
            self.abort()
            return
        if self._loop.time() - self._last_in >= self._keepalive and not self.closed:
            self._unanswered += 1
            self._quic.send_ping(0)
            self.transmit_soon()
        if not self._ended:
            self._watch = self._loop.call_later(self._keepalive, self._check_alive)

    def _close_now(self) -> None:
        assert self._closing is not None
        code, reason = self._closing
        self._quic.close(error_code=0 if code == 1000 else code, reason_phrase=close_reason(reason))
        self._transmit()
        self._end(code, reason)

    def _end(self, code: int, reason: str) -> None:
        """Call `handler.closed`, once."""
        if self._ended:
            return
        self._ended = True
        self._cancel(self._grace, self._watch)
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.closed(self, *(self._closing or (code, reason)))
            except Exception:
                logger.exception("a handler failed at the end of a connection")
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(
                ConnectionRefusedError(f"the QUIC connection was refused ({code} {reason})".strip())
            )
        if not self._lingers():
            self._forget()

    def _lingers(self) -> bool:
        """Whether to stay for a while after the end, to answer late packets. A client does not, because its socket must
        not outlive the user's close."""
        return False

    def _forget(self) -> None:
        if self._forgotten:
            return
        self._forgotten = True
        self._cancel(self._timer)
        self._timer = None
        self._gone(self)

    def _handshaken(self) -> None:
        """Called when the handshake is complete."""

    def _sent(self, datagrams: int) -> None:
        """Called with the number of datagrams sent."""

    def _renamed(self, event: events.ConnectionIdIssued | events.ConnectionIdRetired) -> None:
        """Called when connection ids change. Only the server's port needs to know."""

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            logger.exception("a handler failed; its connection is closed")
            self.close(CloseCode.INTERNAL, "internal error")

    @staticmethod
    def _cancel(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()


def _ending(event: events.ConnectionTerminated) -> tuple[int, str]:
    """The application's close code. QUIC's own errors count as a broken connection."""
    if event.frame_type is not None:
        return ABNORMAL, event.reason_phrase
    return event.error_code or 1000, event.reason_phrase
