"""What workers count, as Redis has it: `processed failed|total bucket:count ...|total bucket:count ...`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from veredus.model.type_stats import Counted, Durations

_MOST = 2**53
"""Greater numbers are not counts."""


def encode_durations(durations: Durations) -> str:
    """The total in microseconds and the count of each bucket. lua/stats/record.lua adds two of them."""
    pairs = "".join(f" {bucket}:{number}" for bucket, number in durations.buckets.items())
    return f"{round(durations.total * 1000)}{pairs}"


def decode_counted(data: bytes) -> Counted | None:
    """None for other bytes."""
    try:
        numbers, run, wait = data.decode().split("|")
        processed, failed = map(_count, numbers.split())
        return Counted(processed, failed, _durations(run), _durations(wait))
    except ValueError:
        return None


def _durations(text: str) -> Durations:
    total, *pairs = text.split()
    split = (pair.partition(":") for pair in pairs)
    return Durations(_count(total) / 1000, {_count(bucket): _count(number) for bucket, _, number in split})


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _MOST:
        raise ValueError(f"{text} is not a count")
    return number


def encode_error(error: Mapping[str, str]) -> str:
    return json.dumps(error, separators=(",", ":"))


def decode_error(data: bytes) -> tuple[int, int, Mapping[str, Any]] | None:
    """When the first and the last error of a group were, and what is known of the last one."""
    times, _, text = data.partition(b"\n")
    try:
        first, last = map(_count, times.decode().split())
        known = json.loads(text)
        return (first, last, known) if isinstance(known, dict) else None
    except (ValueError, RecursionError):
        return None
