"""What a transport is to the rest: chunks out, chunks in, how much is unsent, and one way to close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol


class Transport(Protocol):
    """One connection. All methods belong to the event loop's thread and never block."""

    @property
    def kind(self) -> Literal["websocket", "quic"]: ...

    @property
    def encoding(self) -> Literal["protobuf", "json"]:
        """What was negotiated: pick the codec by it."""

    @property
    def peer(self) -> str:
        """Address of the other end as `host:port`, now: QUIC clients may move."""

    @property
    def host(self) -> str:
        """Address of the client without its port; behind a trusted proxy the one that the proxy tells."""

    @property
    def unsent(self) -> int:
        """Bytes given to `send` that have not left this process. Stop giving more above `HIGH_WATER`."""

    @property
    def closed(self) -> bool: ...

    def send(self, chunks: Sequence[bytes]) -> None:
        """Queue these chunks, each holding whole frames; they leave together. Ignored after a close."""

    def close(self, code: int, reason: str = "") -> None:
        """Send what is queued, then end the connection with this close code. The handler's `closed` follows.

        A peer that does not read gets two seconds; then the connection is cut.
        """

    def abort(self) -> None:
        """Cut the connection now, as a broken network would; `closed` follows with code 1006."""


class Handler(Protocol):
    """One per connection, called synchronously on the loop. What it raises closes that connection with 4006."""

    def opened(self, transport: Transport) -> None:
        """The connection is up; a subprotocol was agreed."""

    def received(self, transport: Transport, data: bytes) -> None:
        """Bytes that came: a whole WebSocket message, or any piece of the QUIC stream."""

    def writable(self, transport: Transport) -> None:
        """`unsent` fell below `LOW_WATER` after having been above `HIGH_WATER`."""

    def closed(self, transport: Transport, code: int, reason: str) -> None:
        """The end, exactly once after `opened`: the close code that came or was sent, 1006 if none."""


HandlerFactory = Callable[[], Handler]

HIGH_WATER = 64 * 1024
LOW_WATER = 32 * 1024
ABNORMAL = 1006  # the connection broke without a close code
CLOSE_GRACE = 2.0  # seconds for a peer to take what is queued before a close cuts the connection


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it really listens on (port 0 asked for any free one)."""

    async def close(self) -> None:
        """Stop accepting. Connections live on; close them one by one."""


class Doorkeeper(Protocol):
    """Knows how many connections each address has."""

    def enter(self, host: str) -> bool:
        """A connection from this address: may it stay? Then it counts until `leave`."""

    def leave(self, host: str) -> None: ...

    def silent(self) -> None:
        """One was cut because it did not say in time what it wants."""

    def dropped(self) -> None:
        """A datagram was not looked at: its connection sends too many."""

    def is_proxy(self, host: str) -> bool:
        """Whether what this address says of its clients' addresses is believed."""


class AcceptGate(Protocol):
    """Asked once per new connection, before anything expensive: 0.0 lets it in, else it may come again after so many
    seconds."""

    def __call__(self, address: str) -> float: ...
