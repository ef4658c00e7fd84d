"""Units: durations never become shorter, instants never earlier, except where Go's readers expect it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.wire import times


@pytest.mark.parametrize(
    ("given_", "seconds"), [(1, 1.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (timedelta(milliseconds=1), 0.001)]
)
def test_to_seconds(given_: float | timedelta, seconds: float) -> None:
    assert times.to_seconds(given_) == seconds


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0, 0), (0.25, 250), (0.0001, 1), (0.2501, 251), (1.1, 1100), (0.1 + 0.2, 300), (60, 60_000), (8.2, 8200)],
)
def test_to_milliseconds(seconds: float, milliseconds: int) -> None:
    assert times.to_milliseconds(seconds) == milliseconds


@pytest.mark.parametrize(
    ("instant", "milliseconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 11, 15, 22, 40, 0, 123456, tzinfo=UTC), 1794782400124),
        (datetime(2026, 11, 15, 22, 40, 0, 123000, tzinfo=UTC), 1794782400123),
        (datetime(2026, 11, 16, 7, 40, tzinfo=timezone(timedelta(hours=9))), 1794782400000),
        (datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC), -500),
    ],
)
def test_instants(instant: datetime, milliseconds: int) -> None:
    assert times.unix_milliseconds(instant) == milliseconds


def test_never_is_gos_zero_time() -> None:
    assert datetime(1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(seconds=times.NEVER_SECONDS)


@given(st.integers(0, 10**9))
def test_whole_milliseconds_survive_as_seconds(milliseconds: int) -> None:
    assert times.to_milliseconds(milliseconds / 1000) == milliseconds


@given(st.floats(0, 10**7))
def test_a_delay_is_never_shortened(seconds: float) -> None:
    assert times.to_milliseconds(seconds) >= seconds * 1000 - 1e-6


@given(st.integers(0, 10**16).map(lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)))
def test_an_instant_is_never_earlier_by_more_than_its_unit(instant: datetime) -> None:
    micros = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert times.unix_milliseconds(instant) == -(-micros // 1000)
