"""SharedBeat: shows the supervisor in shared memory when a worker process last ran, and the deadlines of its tasks."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_HEAD = struct.Struct("=qqdq")
"""Two counters that differ during a write, the time, and the number of entries that follow."""
_ENTRY = struct.Struct("=qd")
_FLAG = 8
"""Bytes before the head; the first is 1 if the process is draining."""
_TRIES = 100


class Beat(NamedTuple):
    """Times are on the monotonic clock, which all processes of a machine share."""

    at: float
    """When the process last ran; 0 if it never did."""
    ends: Mapping[int, float]
    """The end of the deadline and grace of each running task, by `entry_of`."""
    is_draining: bool
    """Whether it takes no more tasks, so that it can be replaced."""


def entry_of(queue: str, task_id: str) -> int:
    """A short key that is the same in a process and its forks."""
    return hash((queue, task_id))


class SharedBeat:
    """Created before the fork. Only the child writes, only the parent reads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, _FLAG + _HEAD.size + size * _ENTRY.size)
        self._number = 0

    def publish(self, now: float, running: Iterable[tuple[int, float]]) -> None:
        entries = list(running)[: self._size]
        body = b"".join([_ENTRY.pack(*entry) for entry in entries])
        self._number += 1
        _HEAD.pack_into(self._memory, _FLAG, self._number, self._number - 1, now, len(entries))
        self._memory[_FLAG + _HEAD.size : _FLAG + _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._memory, _FLAG, self._number, self._number, now, len(entries))

    def drain(self) -> None:
        self._memory[0] = 1

    def read(self) -> Beat:
        for _ in range(_TRIES):
            before, _, at, count = _HEAD.unpack_from(self._memory, _FLAG)
            count = min(max(count, 0), self._size)
            body = self._memory[_FLAG + _HEAD.size : _FLAG + _HEAD.size + count * _ENTRY.size]
            _, after, again, _ = _HEAD.unpack_from(self._memory, _FLAG)
            if before == after and at == again:
                return Beat(at, dict(_ENTRY.iter_unpack(body)), bool(self._memory[0]))
        # The process was stopped during a write: the time is known, the entries are not.
        return Beat(at if math.isfinite(at) else 0.0, {}, bool(self._memory[0]))

    def close(self) -> None:
        self._memory.close()
