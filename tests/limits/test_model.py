"""Limits as values: what is allowed, and how they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus import App, ConfigError, Limit
from veredus.model.limits import check_limits, parse_rate, queue_specs, rate_text, task_specs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100/s", (100, 1000)),
        ("1000/m", (1000, 60_000)),
        ("5/10s", (5, 10_000)),
        ("20/h", (20, 3_600_000)),
        ("1/d", (1, 86_400_000)),
        ("3/250ms", (3, 250)),
        ("2 / minute", (2, 60_000)),
        ("7/1.5s", (7, 1500)),
    ],
)
def test_rates(text: str, expected: tuple[int, int]) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize(
    ("count", "period_ms", "text"),
    [
        (100, 1000, "100/s"),
        (5, 10_000, "5/10s"),
        (2, 90_000, "2/90s"),
        (3, 120_000, "3/2m"),
        (20, 3_600_000, "20/h"),
        (1, 86_400_000, "1/d"),
        (1, 31 * 86_400_000, "1/31d"),
        (3, 250, "3/250ms"),
        (1, 1, "1/1ms"),
    ],
)
def test_people_read_a_rate_in_its_largest_unit(count: int, period_ms: int, text: str) -> None:
    assert rate_text(count, period_ms) == text
    assert parse_rate(text) == (count, period_ms)


def test_no_rate_is_no_text() -> None:
    assert rate_text(0, 0) == ""


@pytest.mark.parametrize(
    "wrong", ["", "100", "0/s", "-1/s", "x/s", "1/", "1/0s", "1/32d", "1/40d", "1/s/s", 5, None, "2000000/s"]
)
def test_what_is_no_rate_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="rate"):
        parse_rate(wrong)


@given(st.integers(1, 1_000_000), st.sampled_from([1, 250, 1000, 10_000, 60_000, 3_600_000, 86_400_000]))
def test_a_rate_reads_as_it_was_written(count: int, period_ms: int) -> None:
    assert parse_rate(rate_text(count, period_ms)) == (count, period_ms)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"rate": "often"},
        {"rate": "1/s", "per": "task"},
    ],
)
def test_what_is_no_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limit(**wrong)


def test_a_wrong_word_gets_the_right_one_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'key'"):
        Limit(concurrency=1, per="keys")


def test_one_limit_for_all_and_one_per_key() -> None:
    both = [Limit(concurrency=5), Limit(rate="1/s", per="key")]
    assert check_limits("limit", both) == tuple(both)
    assert check_limits("limit", None) == ()
    with pytest.raises(ConfigError, match="at most one"):
        check_limits("limit", [Limit(concurrency=5), Limit(rate="1/s")])
    with pytest.raises(ConfigError):
        check_limits("limit", "5/s")  # type: ignore[arg-type]


def test_how_they_are_written() -> None:
    limits = [Limit(concurrency=5), Limit(rate="100/s", per="key")]
    assert task_specs("mail.send", limits) == {"task:mail.send": "5 0 0", "task-key:mail.send": "0 100 1000"}
    assert queue_specs([Limit(concurrency=2, rate="3/m")]) == {"queue": "2 3 60000", "queue-key": ""}


def test_declaring_them() -> None:
    app = App("redis://localhost")

    @app.task(limit=Limit(concurrency=5))
    async def work() -> None: ...

    assert work.limits == (Limit(concurrency=5),)
    app.limit("mail", Limit(rate="10/s"))
    app.limit("other", None)
    assert app.limits == {"mail": (Limit(rate="10/s"),), "other": ()}
    with pytest.raises(ConfigError):
        app.limit(" ", Limit(rate="10/s"))
    with pytest.raises(ConfigError, match="limit"):
        app.task(limit=5)(lambda: None)  # type: ignore[call-overload]
