"""How long to wait before the next attempt."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from veredus.errors import ConfigError

RetryDelayFunction = Callable[[int, BaseException, Any], float | timedelta]
"""(retries so far, the error, the task) -> seconds."""

RetryDelay = float | timedelta | Sequence[float] | RetryDelayFunction


def asynq_default(retried: int, error: BaseException, task: Any) -> float:
    """Asynq's own: n^4 + 15 + random(0..29) * (n + 1) seconds."""
    return float(retried**4 + 15 + random.randrange(30) * (retried + 1))


def exponential(
    base: float = 1.0, *, factor: float = 2.0, cap: float = 3600.0, jitter: float = 0.1
) -> RetryDelayFunction:
    """`base * factor^n` seconds, at most `cap`, plus or minus a share of `jitter`."""
    if base < 0 or cap < 0:
        raise ConfigError("exponential", (base, cap), "base and cap of at least 0 seconds")
    if factor < 1:
        raise ConfigError("factor", factor, "at least 1")
    if not 0 <= jitter <= 1:
        raise ConfigError("jitter", jitter, "a share from 0 to 1")

    def delay(retried: int, error: BaseException, task: Any) -> float:
        try:
            wait = min(cap, base * factor**retried)
        except OverflowError:
            wait = cap
        return wait * random.uniform(1 - jitter, 1 + jitter)

    return delay


def as_function(given: RetryDelay) -> RetryDelayFunction:
    """Seconds, a list whose last value repeats, or a function: all become a function."""
    if callable(given):
        return given
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, (bool, str | bytes)):
        raise ConfigError("retry_delay", given, "seconds, a list of seconds, exponential(...) or a function")
    if isinstance(given, int | float):
        given = [given]
    try:
        steps = [float(step) for step in given]
    except (TypeError, ValueError):
        raise ConfigError("retry_delay", given, "seconds, a list of seconds, exponential(...) or a function") from None
    if not steps or min(steps) < 0 or not all(map(math.isfinite, steps)):
        raise ConfigError("retry_delay", given, "at least one value, none below 0 and none endless")
    return lambda retried, error, task: steps[min(retried, len(steps) - 1)]
