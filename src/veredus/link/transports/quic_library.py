"""The internals of aioquic that we rely on; `tests/transports/test_libraries.py` lists them."""

from __future__ import annotations

from collections.abc import Callable

from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated


def unconfirmed(quic: QuicConnection, stream_id: int) -> int:
    """Bytes of a stream that the other end has not confirmed."""
    stream = quic._streams.get(stream_id)
    return 0 if stream is None else stream.sender._buffer_stop - stream.sender._buffer_start


def is_handshake_complete(quic: QuicConnection) -> bool:
    return quic._handshake_complete


def ending(quic: QuicConnection) -> ConnectionTerminated | None:
    """How the connection ends. aioquic itself reports the peer's close only after the draining period."""
    return quic._close_event


def reset_tokens(quic: QuicConnection) -> list[bytes]:
    """Tokens with which the other end may reset this connection."""
    return [known.stateless_reset_token or b"" for known in (quic._peer_cid, *quic._peer_cid_available)]


class ResettableConnection(QuicConnection):
    """A server's connection whose reset tokens derive from its ids, so that a restarted process can derive them too."""

    def __init__(self, *, reset_token: Callable[[bytes], bytes], **arguments: object) -> None:
        self._reset_token = reset_token
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._host_cids[0].stateless_reset_token = reset_token(self.host_cid)

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        for connection_id in self._host_cids:
            if not connection_id.was_sent:
                connection_id.stateless_reset_token = self._reset_token(connection_id.cid)
