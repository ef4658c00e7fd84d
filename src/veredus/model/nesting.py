"""The maximum nesting of JSON: the same on every Python, while the limits of its parsers differ."""

from __future__ import annotations

from array import array
from itertools import accumulate

MAX_DEPTH = 500
"""Arrays and objects within each other. Below the 1,000 calls of Python 3.11, which count the caller's own as well."""

FLAT = 2 * MAX_DEPTH
"""JSON of at most this many bytes is never nested deeper: each level has two brackets."""

_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def too_deep(data: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether this JSON is nested deeper. For data that is not JSON the result is undefined: its parser refuses it."""
    if len(data) <= 2 * most or data.count(b"[") + data.count(b"{") <= most:
        return False  # each level has two brackets
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(data.split(b'"')[::2]).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(array("b", outside)), default=0) > most
