"""Durations as Go writes and reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model.duration import format_duration, parse_duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1h15m30.918273645s", 4530 * SECOND + 918273645),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("2us", 2000),
        ("2\u00b5s", 2000),
        ("2\u03bcs", 2000),
        ("100ns", 100),
        ("3000h", 3000 * 3600 * SECOND),
    ],
)
def test_reads_what_go_reads(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "3", "-", "s", ".", "-.", ".s", "1d", "1h 5m", "x1s", "1s1", "9999999h", "\u0663s"]
)
def test_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1, "1s"),
        (90, "1m30s"),
        (3600, "1h0m0s"),
        (129600, "36h0m0s"),
        (0.25, "250ms"),
        (1.5, "1.5s"),
        (0.0000015, "1.5\u00b5s"),
        (0.001, "1ms"),
        (0.000001, "1\u00b5s"),
        (5e-9, "5ns"),
        (1e-9, "1ns"),
        (-90, "-1m30s"),
    ],
)
def test_writes_what_go_writes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 9 * 10**12))
def test_what_is_written_can_be_read(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds * 1_000_000
