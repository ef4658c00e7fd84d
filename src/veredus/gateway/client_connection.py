"""ClientConnection: one client's transport, link and identity; passes each event to the part that handles it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from veredus.gateway.auth import Identity
from veredus.gateway.background import ClientTasks
from veredus.gateway.limits import Bucket, Overload
from veredus.gateway.received_requests import ReceivedRequests
from veredus.link.events import Acked, Ended, ServerEvent, SlowConsumer
from veredus.link.server import ServerLink
from veredus.link.transports.base import HIGH_WATER, Transport
from veredus.model.delivery import DISCONNECTED, REVOKED
from veredus.model.frames import Auth, Bye, Cancel, CloseCode, Hello, Join, Leave, Request

if TYPE_CHECKING:
    from veredus.gateway.client_hooks import ConnectedClient
    from veredus.gateway.delivery import Delivery
    from veredus.gateway.handshake import Handshake
    from veredus.gateway.router import RequestRouter

logger = logging.getLogger("veredus.gateway")


AT_ONCE = 64
"""Events of one client handled in one turn of the loop; the rest waits for the next turn."""
_COUNTED = {int(CloseCode.RATE_LIMITED): "frames", int(CloseCode.HELLO_TIMEOUT): "silent"}


_KICKED = {
    "superseded": (CloseCode.SUPERSEDED, ""),
    "replaced": (CloseCode.SUPERSEDED, ""),
    "full": (CloseCode.SLOW_CONSUMER, ""),
    REVOKED: (CloseCode.UNAUTHORIZED, "the token is revoked"),
    DISCONNECTED: (CloseCode.SESSION_CLOSED, "the session was ended by the operator"),
}


class ConnectionOwner(Protocol):
    """The gateway, as its connections see it."""

    delivery: Delivery
    router: RequestRouter
    handshake: Handshake
    overload: Overload

    def monotonic(self) -> float: ...

    def open_link(self, transport: Transport, now: float) -> ServerLink: ...

    def opened(self, connection: ClientConnection) -> str:
        """Count a new connection. Returns why it is refused, or ""."""
        ...

    def closed(self, connection: ClientConnection) -> None: ...


class ClientConnection:
    """Called by the transport, synchronously on the loop."""

    __slots__ = (
        "arrivals",
        "bucket",
        "check_at",
        "client",
        "client_tasks",
        "connect_hooks_done",
        "connected_at",
        "ended",
        "generation",
        "identity",
        "known_rids",
        "link",
        "over",
        "owner",
        "reading",
        "requests",
        "resumed_at",
        "sid",
        "transport",
        "unanswered_rids",
        "unhandled",
        "waiting_requests",
        "written_ack",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self.owner = owner
        self.transport: Transport
        self.link: ServerLink
        self.identity: Identity | None = None
        self.bucket: Bucket | None = None
        """The rate limit of its requests."""
        self.sid = ""
        self.generation = 0
        self.connected_at = 0.0
        self.check_at = 0.0
        """When to compare its position with the log."""
        self.reading = False
        """Whether a read of its log is queued or running."""
        self.over = False
        """Whether the connection has ended: it sends and handles nothing more."""
        self.arrivals = 0
        """Number of requests received."""
        self.requests = ReceivedRequests()
        self.known_rids: frozenset[int] = frozenset()
        """Requests that earlier connections of the session received."""
        self.client: ConnectedClient | None = None
        """Passed to on_connect, and not yet to on_disconnect."""
        self.connect_hooks_done: asyncio.Event | None = None
        """Set when the on_connect hooks have ended."""
        self.ended: tuple[int, str] | None = None
        """Close code and reason, if this side ended the connection."""
        self.unanswered_rids: frozenset[int] = frozenset()
        """Those of `known_rids` that had no response at the attach."""
        self.resumed_at = -math.inf
        """When it resumed a session."""
        self.waiting_requests = 0
        """Number of requests that wait because they cannot be rejected yet."""
        self.client_tasks = ClientTasks()
        self.unhandled: deque[ServerEvent] = deque()
        """Events received and not handled yet."""
        self.written_ack = 0
        """The highest ack passed to Redis."""

    # Called by the transport.

    def opened(self, transport: Transport) -> None:
        now = self.owner.monotonic()
        self.transport = transport
        self.link = self.owner.open_link(transport, now)
        self.connected_at = now
        refusal = self.owner.opened(self)
        if refusal:
            self.end(CloseCode.SERVER_OVERLOADED, refusal, retry_after_ms=1000)

    def received(self, transport: Transport, data: bytes) -> None:
        if self.over:
            return
        events = self.link.receive(data, self.owner.monotonic())
        if self.unhandled or len(events) > AT_ONCE:
            if not self.unhandled:
                asyncio.get_running_loop().call_soon(self._handle_rest)
            self.unhandled.extend(events)
        elif self.handle(events):
            self.owner.delivery.touch(self)

    def _handle_rest(self) -> None:
        if not self.over and self.handle([self.unhandled.popleft() for _ in range(min(AT_ONCE, len(self.unhandled)))]):
            self.owner.delivery.touch(self)
        if self.over:
            self.unhandled.clear()
        elif self.unhandled:
            asyncio.get_running_loop().call_soon(self._handle_rest)

    def writable(self, transport: Transport) -> None:
        if not self.over:
            self.owner.delivery.touch(self)

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        self.over = True
        self.client_tasks.drop()
        self.unhandled.clear()
        self.ended = self.ended or (code, reason)
        self.owner.closed(self)

    # Called by the gateway.

    def handle(self, events: Iterable[ServerEvent]) -> bool:
        """Returns False if the events ended the connection."""
        owner = self.owner
        for event in events:
            if isinstance(event, Acked):
                self.requests.forget(event.rid_floor)
                owner.delivery.acked(self, event)
            elif isinstance(event, Request):
                owner.router.request(self, event)
            elif isinstance(event, Ended):
                self._end(event)
            elif isinstance(event, Hello):
                owner.handshake.hello(self, event)
            elif isinstance(event, Cancel):
                owner.router.cancel(self, event.rid)
            elif isinstance(event, Join | Leave):
                owner.handshake.join(self, event.group, isinstance(event, Join))
            elif isinstance(event, Auth):
                owner.handshake.authenticate(self, event.token)
            elif isinstance(event, SlowConsumer):
                owner.delivery.slow(self, event.seconds)
            elif isinstance(event, Bye):
                owner.handshake.bye(self)
            if self.over:
                return False
        return True

    def flush(self) -> bool:
        """Send the link's output in one write. Returns True if there is more for the next turn of the loop."""
        link = self.link
        if not link.has_output or self.transport.unsent >= HIGH_WATER:
            return False
        self.transport.send(link.take_output())
        return link.has_output

    def end(self, code: int, reason: str = "", *, retry_after_ms: int = 0) -> None:
        """Close the connection, with a reason for the client."""
        if not self.over:
            self.handle(self.link.close(code, reason, self.owner.monotonic(), retry_after_ms=retry_after_ms))

    def lost(self) -> None:
        """End the connection because the store no longer has its session. The client begins a new one."""
        self.end(CloseCode.INSUFFICIENT_STATE, "the store has lost the session")

    def kicked(self, reason: str) -> None:
        """End the connection for the reason in the store."""
        kind, _, text = reason.partition(": ")
        code, usual = _KICKED.get(kind, (CloseCode.SESSION_CLOSED, ""))
        self.end(code, text or usual or f"the session is {reason}")

    def _end(self, ended: Ended) -> None:
        self.over = True
        self.ended = (ended.code, ended.reason)
        if ended.code in _COUNTED:
            self.owner.overload.refused[_COUNTED[ended.code]] += 1
        if ended.code == CloseCode.INSUFFICIENT_STATE:
            self.owner.delivery.counters["forks"] += 1
        chunks = []
        while self.link.has_output:
            chunks += self.link.take_output()
        if chunks:
            self.transport.send(chunks)
        self.transport.close(ended.code, ended.reason)
        logger.debug("the connection of session %s from %s ends: %d %s", self.sid, self.transport.peer, *ended[:2])

    def statistics(self) -> dict[str, object]:
        """The eight statistics of its queue, its user and its transport."""
        identity = self.identity
        return {
            **self.link.get_queue_stats(),
            "user": identity.user if identity is not None else "",
            "transport": self.transport.kind,
            "encoding": self.transport.encoding,
            "peer": self.transport.peer,
            "unsent": self.transport.unsent,
        }
