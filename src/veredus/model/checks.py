"""Checks of settings and arguments. Each returns the value or raises ConfigError, naming field and rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from veredus.errors import ConfigError


def _is_number(value: Any) -> bool:
    """Excludes bool, which is an int in Python, NaN, which no comparison rejects, and ints beyond every float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within the limits."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigError(name, value, f"a whole number {allowed}")
    return int(value)


def seconds(
    name: str, value: Any, *, least: float | None = None, most: float | None = None, endless: bool = False
) -> float:
    """A duration, as a number or a timedelta: above 0, or at least `least`. Infinite only if `endless`."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    fits = _is_number(number) and (number > 0 if least is None else number >= least)
    if not fits or (math.isinf(number) and not endless) or (most is not None and number > most):
        allowed = (
            "above 0" if least is None else f"of at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        )
        raise ConfigError(name, value, f"seconds {allowed}")
    return float(number)


def rate(name: str, value: Any) -> float:
    """Events per second."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise ConfigError(name, value, "a number per second above 0")
    return float(value)


def share(name: str, value: Any) -> float:
    """A part of a whole."""
    if not _is_number(value) or not 0 < value <= 1:
        raise ConfigError(name, value, "a number above 0 and at most 1")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(name, value, "a string")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings, or one string with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(name, value, "a list of strings, or one string with commas")
    return tuple(part.strip() for part in parts if part.strip())


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ConfigError(name, value, f"one of {', '.join(choices)}", known=choices)
    return str(value)


def function(name: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise ConfigError(name, value, "a function")
    return value  # type: ignore[no-any-return]
