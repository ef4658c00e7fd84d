"""One client's connection: its transport, its link and who it is; what arrives is passed to whoever is in charge."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from veredus.gateway.auth import Identity
from veredus.gateway.errands import Turns
from veredus.gateway.limits import Bucket, Overload
from veredus.link.events import Acked, Ended, ServerEvent, SlowConsumer
from veredus.link.server import ServerLink
from veredus.link.transports.base import HIGH_WATER, Transport
from veredus.model.delivery import DISCONNECTED, REVOKED
from veredus.model.frames import Auth, Bye, Cancel, CloseCode, Hello, Join, Leave, Request

if TYPE_CHECKING:
    from veredus.gateway.delivery import Delivery
    from veredus.gateway.lifecycle import Client

logger = logging.getLogger("veredus.gateway")


AT_ONCE = 64
"""What one client has sent, handled in one turn of the loop; the rest waits for the next ones."""
_COUNTED = {int(CloseCode.RATE_LIMITED): "frames", int(CloseCode.HELLO_TIMEOUT): "silent"}


_KICKED = {
    "superseded": (CloseCode.SUPERSEDED, ""),
    "replaced": (CloseCode.SUPERSEDED, ""),
    "full": (CloseCode.SLOW_CONSUMER, ""),
    REVOKED: (CloseCode.UNAUTHORIZED, "the token is revoked"),
    DISCONNECTED: (CloseCode.SESSION_CLOSED, "the session was ended by the operator"),
}


class Desk(Protocol):
    """Who decides about frames that concern more than this connection."""

    delivery: Delivery
    overload: Overload

    def monotonic(self) -> float: ...

    def open_link(self, transport: Transport, now: float) -> ServerLink: ...

    def admitted(self, connection: Connection) -> str:
        """Empty if this connection may stay, else why not."""
        ...

    def hello(self, connection: Connection, frame: Hello) -> None: ...

    def authenticate(self, connection: Connection, token: str) -> None: ...

    def request(self, connection: Connection, frame: Request) -> None: ...

    def cancel(self, connection: Connection, rid: int) -> None: ...

    def join(self, connection: Connection, group: str, joins: bool) -> None: ...

    def bye(self, connection: Connection) -> None: ...

    def left(self, connection: Connection) -> None:
        """The connection is gone."""
        ...


class Connection:
    """Called by the transport, synchronously on the loop."""

    __slots__ = (
        "arrivals",
        "bucket",
        "check_at",
        "client",
        "connected_at",
        "desk",
        "ended",
        "generation",
        "identity",
        "known",
        "later",
        "link",
        "over",
        "reading",
        "recorded",
        "resumed_at",
        "sid",
        "told",
        "transport",
        "turns",
        "waiting",
        "written_ack",
    )

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.transport: Transport
        self.link: ServerLink
        self.identity: Identity | None = None
        self.bucket: Bucket | None = None
        """Requests beyond this are refused."""
        self.sid = ""
        self.generation = 0
        self.connected_at = 0.0
        self.check_at = 0.0
        """When its position is to be compared with the log."""
        self.reading = False
        """Whether a read of its log is under way."""
        self.over = False
        """Nothing is sent or handled any more."""
        self.arrivals = 0
        """How many requests have come."""
        self.known: frozenset[int] = frozenset()
        """Requests that earlier connections of the session have brought."""
        self.client: Client | None = None
        """As hooks were told of it, and not yet of its end."""
        self.told: asyncio.Event | None = None
        """Set when hooks have been told of it."""
        self.ended: tuple[int, str] | None = None
        """How this side has ended it."""
        self.recorded: frozenset[int] = frozenset()
        """Requests that connections before this one have brought and that had no answer yet."""
        self.resumed_at = -math.inf
        """When it took up a session of connections before."""
        self.waiting = 0
        """How many requests wait here because they cannot be rejected yet."""
        self.turns = Turns()
        self.later: deque[ServerEvent] = deque()
        """What has come and is not handled yet."""
        self.written_ack = 0
        """What of the client's acks Redis knows."""

    # Called by the transport.

    def opened(self, transport: Transport) -> None:
        now = self.desk.monotonic()
        self.transport = transport
        self.link = self.desk.open_link(transport, now)
        self.connected_at = now
        refusal = self.desk.admitted(self)
        if refusal:
            self.end(CloseCode.SERVER_OVERLOADED, refusal, retry_after_ms=1000)

    def received(self, transport: Transport, data: bytes) -> None:
        if self.over:
            return
        events = self.link.receive(data, self.desk.monotonic())
        if self.later or len(events) > AT_ONCE:
            if not self.later:
                asyncio.get_running_loop().call_soon(self._go_on)
            self.later.extend(events)
        elif self.handle(events):
            self.desk.delivery.touch(self)

    def _go_on(self) -> None:
        if not self.over and self.handle([self.later.popleft() for _ in range(min(AT_ONCE, len(self.later)))]):
            self.desk.delivery.touch(self)
        if self.over:
            self.later.clear()
        elif self.later:
            asyncio.get_running_loop().call_soon(self._go_on)

    def writable(self, transport: Transport) -> None:
        if not self.over:
            self.desk.delivery.touch(self)

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        self.over = True
        self.turns.drop()
        self.later.clear()
        self.ended = self.ended or (code, reason)
        self.desk.left(self)

    # Called by the gateway.

    def handle(self, events: Iterable[ServerEvent]) -> bool:
        """False if they end the connection."""
        desk = self.desk
        for event in events:
            if isinstance(event, Acked):
                desk.delivery.acked(self, event)
            elif isinstance(event, Request):
                desk.request(self, event)
            elif isinstance(event, Ended):
                self._end(event)
            elif isinstance(event, Hello):
                desk.hello(self, event)
            elif isinstance(event, Cancel):
                desk.cancel(self, event.rid)
            elif isinstance(event, Join | Leave):
                desk.join(self, event.group, isinstance(event, Join))
            elif isinstance(event, Auth):
                desk.authenticate(self, event.token)
            elif isinstance(event, SlowConsumer):
                desk.delivery.slow(self, event.seconds)
            elif isinstance(event, Bye):
                desk.bye(self)
            if self.over:
                return False
        return True

    def flush(self) -> bool:
        """One write with what there is to send. True if there is more for the next turn of the loop."""
        link = self.link
        if not link.has_output or self.transport.unsent >= HIGH_WATER:
            return False
        self.transport.send(link.take_output())
        return link.has_output

    def end(self, code: int, reason: str = "", *, retry_after_ms: int = 0) -> None:
        """Close the connection, with a last word to the client."""
        if not self.over:
            self.handle(self.link.close(code, reason, self.desk.monotonic(), retry_after_ms=retry_after_ms))

    def lost(self) -> None:
        """The store does not have the session any more, and nobody has ended it: the client shall begin a new one."""
        self.end(CloseCode.INSUFFICIENT_STATE, "the store has lost the session")

    def kicked(self, reason: str) -> None:
        """It has lost its session, for a reason that the store gives."""
        kind, _, text = reason.partition(": ")
        code, usual = _KICKED.get(kind, (CloseCode.SESSION_CLOSED, ""))
        self.end(code, text or usual or f"the session is {reason}")

    def _end(self, ended: Ended) -> None:
        self.over = True
        self.ended = (ended.code, ended.reason)
        if ended.code in _COUNTED:
            self.desk.overload.refused[_COUNTED[ended.code]] += 1
        if ended.code == CloseCode.INSUFFICIENT_STATE:
            self.desk.delivery.counters["forks"] += 1
        chunks = []
        while self.link.has_output:
            chunks += self.link.take_output()
        if chunks:
            self.transport.send(chunks)
        self.transport.close(ended.code, ended.reason)
        logger.debug("connection of session %s from %s ends: %d %s", self.sid, self.transport.peer, *ended[:2])

    def statistics(self) -> dict[str, object]:
        """The eight statistics of its queue, by their names, and where it is."""
        identity = self.identity
        return {
            **self.link.get_queue_stats(),
            "user": identity.user if identity is not None else "",
            "transport": self.transport.kind,
            "encoding": self.transport.encoding,
            "peer": self.transport.peer,
            "unsent": self.transport.unsent,
        }
