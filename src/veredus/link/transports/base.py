"""The interfaces of transports: Transport, Handler, Listener, and the limits on new connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol


class Transport(Protocol):
    """One connection. All methods belong to the event loop's thread and never block."""

    @property
    def kind(self) -> Literal["websocket", "quic"]: ...

    @property
    def encoding(self) -> Literal["protobuf", "json"]:
        """The negotiated encoding, which selects the codec."""

    @property
    def peer(self) -> str:
        """Current address of the other end as `host:port`. QUIC clients may move."""

    @property
    def host(self) -> str:
        """Address of the client without its port; behind a trusted proxy, as the proxy reports it."""

    @property
    def unsent(self) -> int:
        """Bytes passed to `send` that have not left this process. Send no more above `HIGH_WATER`."""

    @property
    def closed(self) -> bool: ...

    def send(self, chunks: Sequence[bytes]) -> None:
        """Queue these chunks of whole frames for one write. Ignored after a close."""

    def close(self, code: int, reason: str = "") -> None:
        """Send what is queued, then end the connection with this close code. The handler's `closed` follows.

        If the peer does not read for two seconds, the connection is cut.
        """

    def abort(self) -> None:
        """Cut the connection now, as a broken network would; `closed` follows with code 1006."""


class Handler(Protocol):
    """One per connection, called synchronously on the loop. An exception closes its connection with 4006."""

    def opened(self, transport: Transport) -> None:
        """The connection is open and the subprotocol negotiated."""

    def received(self, transport: Transport, data: bytes) -> None:
        """Data arrived: a whole WebSocket message, or any part of the QUIC stream."""

    def writable(self, transport: Transport) -> None:
        """`unsent` fell below `LOW_WATER` after having been above `HIGH_WATER`."""

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        """Called exactly once after `opened`, with the close code received or sent; 1006 if there was none."""


HandlerFactory = Callable[[], Handler]

HIGH_WATER = 64 * 1024
LOW_WATER = 32 * 1024
ABNORMAL = 1006  # the connection broke without a close code
CLOSE_GRACE = 2.0  # seconds for a peer to take what is queued before a close cuts the connection


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> tuple[str, int]:
        """The real host and port, also if port 0 was requested."""

    async def close(self) -> None:
        """Stop accepting. Open connections stay open."""


class Admission(Protocol):
    """Limits the connections of each address."""

    def enter(self, host: str) -> bool:
        """Admit a connection from this address, which counts until `leave`. Returns False if it is refused."""

    def leave(self, host: str) -> None: ...

    def silent(self) -> None:
        """Count a connection that was cut because it sent nothing in time."""

    def dropped(self) -> None:
        """Count a datagram that was dropped because its connection sends too many."""

    def is_proxy(self, host: str) -> bool:
        """Whether this address is a trusted proxy."""


class AcceptGate(Protocol):
    """Called once per new connection, before anything expensive. Returns 0.0 to admit it, otherwise the seconds after
    which the client may retry."""

    def __call__(self, address: str) -> float: ...
