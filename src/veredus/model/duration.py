"""Durations as Go writes and reads them: `1h30m`, `1m30s`, `250ms`."""

from __future__ import annotations

import re
from decimal import Decimal

from veredus.errors import ConfigError

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_LIMIT = 2**63 - 1
ALLOWED = "a duration such as 30s, 5m or 1h30m (units ns, us, ms, s, m, h)"


def parse_duration(text: str, field: str = "duration") -> int:
    """Nanoseconds. Takes exactly what Go's time.ParseDuration takes."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            break
        whole, _, fraction = part[1].partition(".")
        unit = _UNITS[part[2]]
        total += int(whole or 0) * unit
        total += int(fraction) * unit // 10 ** len(fraction) if fraction else 0
        at = part.end()
    if not rest or at != len(rest) or total > _LIMIT:
        raise ConfigError(field, text, ALLOWED)
    return sign * total


def format_duration(seconds: float) -> str:
    """As Go prints it: 90 is 1m30s, 3600 is 1h0m0s, 0.25 is 250ms."""
    nanoseconds = round(Decimal(str(seconds)) * 1_000_000_000)
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    if rest < 1_000_000_000:
        unit = next(name for name in ("ms", "\u00b5s", "ns") if rest >= _UNITS[name])
        return f"{sign}{_decimal(rest, _UNITS[unit])}{unit}"
    minutes, rest = divmod(rest, _UNITS["m"])
    text = f"{_decimal(rest, _UNITS['s'])}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return sign + text


def _decimal(number: int, unit: int) -> str:
    whole, fraction = divmod(number, unit)
    digits = f"{fraction:0{len(str(unit)) - 1}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)
