"""The bytes of log entries, and of the hints that tell a node about new ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

HEADER = struct.Struct(">QQQ")
"""ts in microseconds, expiry in milliseconds (0: none), bytes of the log up to and including this entry."""
LATE_MARK = bytes((3 << 3, 6))
"""Appended to a stored message, it changes its kind to LATE: the last value of a protobuf field counts."""
_NOT_INLINE = 0xFFFFFFFF


class LogEntry(NamedTuple):
    """One message of a log. `tail` is the encoded message without seq and ts."""

    seq: int
    ts: int
    expiry: int
    """Unix ms, 0 for none."""
    tail: bytes


@dataclass(slots=True)
class Hint:
    """New entries of a session: `count` entries from `first` on. `entries` contains them, or is empty if they were
    too large to send: read the log then."""

    sid: str
    first: int
    count: int
    entries: tuple[LogEntry, ...]


class Kick(NamedTuple):
    """The connection with this generation (or an older one) no longer has the session. `reason` is superseded
    (another connection attached), replaced (too many sessions of this user), closed, full, or the reason given to
    `close`."""

    sid: str
    generation: int
    reason: str


class HintProbe(NamedTuple):
    """A message of a node to itself, to check that hints arrive."""

    number: int


def unpack_entry(seq: int, data: bytes) -> LogEntry:
    """The form of an entry in the list."""
    ts, expiry, _ = HEADER.unpack_from(data)
    return LogEntry(seq, ts, expiry, data[24:])


def unpack_hints(data: bytes) -> list[Hint | Kick | HintProbe]:
    """The rows of one published message (written by lua/include/log.lua). Raises ValueError for anything else."""
    rows: list[Hint | Kick | HintProbe] = []
    try:
        position, end = 0, len(data)
        while position < end:
            kind = data[position]
            length = data[position + 1]
            position += 2
            sid = data[position : position + length].decode()
            position += length
            if kind == 109:  # m
                first, count = _RUN.unpack_from(data, position)
                position += 12
                entries = []
                for seq in range(first, first + count):
                    (size,) = _SIZE.unpack_from(data, position)
                    position += 4
                    if size != _NOT_INLINE:
                        entries.append(unpack_entry(seq, data[position : position + size]))
                        position += size
                rows.append(Hint(sid, first, count, tuple(entries) if len(entries) == count else ()))
            elif kind == 107:  # k
                generation, size = _KICK.unpack_from(data, position)
                position += 9
                rows.append(Kick(sid, generation, data[position : position + size].decode()))
                position += size
            elif kind == 112:  # p
                (number,) = _NUMBER.unpack_from(data, position)
                position += 8
                rows.append(HintProbe(number))
            else:
                raise ValueError(f"no hint begins with {kind}")
    except (struct.error, IndexError, UnicodeDecodeError) as exc:
        raise ValueError(f"not a hint: {exc}") from exc
    if position != end:
        raise ValueError("not a hint: it ends too early")
    return rows


def pack_probe(number: int) -> bytes:
    return b"p\x00" + _NUMBER.pack(number)


_RUN = struct.Struct(">QI")
_SIZE = struct.Struct(">I")
_KICK = struct.Struct(">QB")
_NUMBER = struct.Struct(">Q")
