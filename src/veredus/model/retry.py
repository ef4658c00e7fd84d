"""How long to wait before the next attempt."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from veredus.errors import ConfigError, Retry

RetryDelayFunction = Callable[[int, BaseException, Any], float | timedelta]
"""Called with the number of retries so far, the error and the task; returns seconds."""

RetryDelay = float | timedelta | Sequence[float] | RetryDelayFunction


def asynq_default(retried: int, error: BaseException, task: Any) -> float:
    """Asynq's default: n^4 + 15 + random(0..29) * (n + 1) seconds."""
    return float(retried**4 + 15 + random.randrange(30) * (retried + 1))


def exponential(
    base: float = 1.0, *, factor: float = 2.0, cap: float = 3600.0, jitter: float = 0.1
) -> RetryDelayFunction:
    """`base * factor^n` seconds, at most `cap`, with a random deviation of up to the share `jitter`."""
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


FINAL = "__veredus_final__"
"""An attribute of an error that was raised in another process: the answer there, where its class is known for sure."""

ErrorClasses = type[BaseException] | Iterable[type[BaseException]]
"""One class of errors, or several."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Which errors of a handler lead to another attempt; `never` wins over `only`."""

    only: tuple[type[BaseException], ...] | None = None
    never: tuple[type[BaseException], ...] = ()

    @classmethod
    def make(cls, retry_on: Any, no_retry_on: Any) -> RetryRule | None:
        """None if there is nothing to decide."""
        if retry_on is None and no_retry_on is None:
            return None
        only = None if retry_on is None else _classes("retry_on", retry_on)
        return cls(only, () if no_retry_on is None else _classes("no_retry_on", no_retry_on))

    def is_final(self, error: BaseException, *, raised: bool) -> bool:
        """Whether no attempt follows this error. `raised`: by the handler itself. What befalls an attempt from outside
        (a timeout, a process that was killed) is final only if its class is named in `never`. A group of errors, as
        `asyncio.TaskGroup` raises, is final if one of them is; a `Retry` beside others says nothing."""
        there = getattr(error, FINAL, None)
        if raised and there is not None:
            return bool(there)
        if isinstance(error, self.never):
            return True
        if isinstance(error, BaseExceptionGroup) and not isinstance(error, self.only or ()):
            return any(self.is_final(one, raised=raised) for one in error.exceptions if not isinstance(one, Retry))
        return raised and self.only is not None and not isinstance(error, self.only)


def _classes(name: str, given: Any) -> tuple[type[BaseException], ...]:
    listed = [given] if isinstance(given, type) else given
    try:
        found = tuple(listed)
    except TypeError:
        found = ()
    if not found and isinstance(listed, tuple | list | set | frozenset):
        return ()
    if not found or not all(isinstance(one, type) and issubclass(one, BaseException) for one in found):
        raise ConfigError(name, given, "classes of errors, such as (ConnectionError, TimeoutError)")
    return found


def as_function(given: RetryDelay) -> RetryDelayFunction:
    """Converts seconds, a list whose last value repeats, or a function, into a function."""
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
        raise ConfigError("retry_delay", given, "at least one value, none below 0 and none infinite")
    return lambda retried, error, task: steps[min(retried, len(steps) - 1)]
