"""Units, converted in one place: seconds as floats and aware datetimes outside, what Asynq stores inside."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

NEVER_SECONDS = -62135596800
"""Go's zero time, which readers take for "never"."""


def to_seconds(duration: float | timedelta) -> float:
    """A duration as the user gives it, in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def to_milliseconds(seconds: float) -> int:
    """Rounded up: a delay may not become shorter."""
    return math.ceil(round(seconds * 1000, 6))


def to_whole_seconds(seconds: float) -> int:
    """Asynq's timeouts and retentions are whole seconds; rounded up, so that a fraction does not become "none"."""
    return math.ceil(round(seconds, 9))


def unix_seconds(instant: datetime) -> int:
    """Whole Unix seconds, rounded down, as Go does for instants."""
    return math.floor(instant.timestamp())


def unix_milliseconds(instant: datetime) -> int:
    """Rounded up: an instant may not become earlier."""
    return math.ceil(round(instant.timestamp() * 1000, 3))


def from_unix(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
