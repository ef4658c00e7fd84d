"""Stateless reset: a restarted gateway tells the clients of its previous process that their connection is gone."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from aioquic.quic.connection import QuicConnection

from veredus.link.transports.quic_library import reset_tokens

TOKEN = 16
SMALLEST = 21  # bytes of a reset, so that it looks like any other packet
LARGEST = 43


def reset_token(key: bytes, connection_id: bytes) -> bytes:
    return hmac.digest(key, connection_id, "sha256")[:TOKEN]


def reset_packet(key: bytes, connection_id: bytes, answered: int) -> bytes | None:
    """The answer to a packet of `answered` bytes for an unknown connection. It is always smaller, so that two servers
    cannot answer each other endlessly."""
    size = min(answered - 1, LARGEST)
    if size < SMALLEST:
        return None
    noise = bytearray(os.urandom(size - TOKEN))
    noise[0] = noise[0] & 0x3F | 0x40
    return bytes(noise) + reset_token(key, connection_id)


def is_reset(connection: QuicConnection, data: bytes) -> bool:
    """Whether these bytes are the reset of this (client's) connection."""
    token = data[-TOKEN:]
    if len(data) < SMALLEST or data[0] & 0x80:
        return False
    return any(hmac.compare_digest(token, known) for known in reset_tokens(connection))


def reset_key_for(private_key: bytes | None) -> bytes:
    """A key that survives restarts: derived from the certificate's private key or, without one, from boot id and
    user."""
    if private_key is not None:
        return hmac.digest(private_key, b"veredus stateless reset", "sha256")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return os.urandom(32)
    return hashlib.sha256(boot + str(os.getuid()).encode()).digest()
