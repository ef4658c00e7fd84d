"""Converts units in one place: floats of seconds and aware datetimes outside, Asynq's units inside."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

NEVER_SECONDS = -62135596800
"""Go's zero time, which readers take for "never"."""


EARLIEST, LATEST = NEVER_SECONDS, 253402300799
"""The years 1 to 9999, which protobuf's Timestamp and Python's datetime support. Other values are clamped."""
INT64 = 2**63 - 1


def clamped(seconds: float) -> float:
    """Unix seconds that every reader can display, whatever another program has written."""
    return max(EARLIEST, min(seconds, LATEST)) if seconds == seconds else EARLIEST


def whole(number: float | bytes | str) -> int:
    """A score of a sorted set, which may be infinite, as a 64-bit integer."""
    return int(max(-float(INT64), min(float(number), float(INT64))))


def count_of(found: object) -> int:
    """A number that Redis has as text; 0 if it is missing or invalid."""
    try:
        return max(-INT64, min(int(found), INT64)) if isinstance(found, bytes | int) else 0
    except ValueError:
        return 0


def to_seconds(duration: float | timedelta) -> float:
    """A user's duration, in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def to_milliseconds(seconds: float) -> int:
    """Rounded up: a delay may not become shorter."""
    return math.ceil(round(seconds * 1000, 6))


def unix_milliseconds(instant: datetime) -> int:
    """Rounded up: an instant may not become earlier."""
    return math.ceil(round(instant.timestamp() * 1000, 3))
