"""Whole numbers as protobuf writes them."""

from __future__ import annotations

_SMALL = tuple(bytes((number,)) for number in range(128))


def varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)
