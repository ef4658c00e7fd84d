"""Reads from an encoded message, without decoding it, whether it is a response, and to which request."""

from __future__ import annotations

RESPONSE = b"\x18\x01"
"""The beginning of every stored response: field 3, the kind, is 1."""
_RID = 0x20


def response_rid(tail: bytes) -> int:
    """The request that this stored message answers; 0 for anything else."""
    if tail[:2] != RESPONSE or len(tail) < 4 or tail[2] != _RID:
        return 0
    number = shift = 0
    for byte in tail[3:13]:
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
    return 0
