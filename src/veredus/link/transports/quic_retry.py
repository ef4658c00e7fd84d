"""Retry: a client proves that it receives packets at its address before the server keeps any state for it."""

from __future__ import annotations

import hmac
import os
import struct
from typing import Any

from aioquic.quic.packet import encode_quic_retry

_MAC = 16
_AGE = 10  # seconds for which a token is valid
_HEAD = struct.Struct(">QB")


class Retries:
    """Makes and checks tokens, which are valid for one address, for a few seconds, in this process."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def packet(self, header: Any, address: tuple[Any, ...], now: float) -> bytes:
        """The answer to a first packet: a token to retry with."""
        source = os.urandom(8)
        head = _HEAD.pack(int(now), len(header.destination_cid)) + header.destination_cid
        return encode_quic_retry(
            version=header.version,
            source_cid=source,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=head + self._mac(head, source, address),
        )

    def original_id(self, header: Any, address: tuple[Any, ...], now: float) -> bytes | None:
        """The client's original connection id if the token is valid, otherwise None."""
        token = header.token
        if len(token) < _HEAD.size + _MAC:
            return None
        head, mac = token[:-_MAC], token[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(head, header.destination_cid, address)):
            return None
        made, length = _HEAD.unpack_from(head)
        return head[_HEAD.size : _HEAD.size + length] if 0 <= int(now) - made <= _AGE else None

    def _mac(self, head: bytes, source: bytes, address: tuple[Any, ...]) -> bytes:
        return hmac.digest(self._key, head + source + f"{address[0]} {address[1]}".encode(), "sha256")[:_MAC]
