"""What is caught up after a time without a scheduler."""

from __future__ import annotations

from itertools import pairwise

import pytest

from veredus.model.cron import parse
from veredus.scheduler.catchup import plan

NOW = 1_800_000_000
GRACE = 6


def ticks(spec: str, gap: int, missed: str = "all", now: int = NOW) -> list[int]:
    """The plan of a schedule that stands `gap` seconds back, as seconds before (negative) or after now."""
    return [tick - now for tick in plan(parse(spec), now - gap, now, missed, GRACE).ticks]


@pytest.mark.parametrize("missed", ["all", "once", "skip"])
def test_without_a_gap_the_next_tick_is_planned(missed: str) -> None:
    assert ticks("@every 10s", 0, missed) == [10]
    assert ticks("@every 10s", 3, missed) == [7]
    assert ticks("0 0 30 2 *", 50, missed) == []


def test_all_missed_ticks_are_caught_up_in_order() -> None:
    assert ticks("@every 10s", 35) == [-25, -15, -5]
    assert ticks("@every 1s", 300) == list(range(-299, 1))


def test_once_is_one_for_all() -> None:
    assert ticks("@every 10s", 35, "once") == [-5]
    assert ticks("@every 10s", 86400 * 365, "once") == [0]
    assert ticks("@daily", 86400 * 30, "once") == [-(NOW % 86400)]


def test_skip_goes_on_from_now_but_a_change_of_leaders_skips_nothing() -> None:
    assert ticks("@every 10s", 38, "skip") == [2]
    assert ticks("@every 10s", 35, "skip") == [-5]
    assert ticks("@every 1s", 300, "skip") == [-5, -4, -3, -2, -1, 0]


def test_every_keeps_its_course_through_a_long_gap() -> None:
    assert ticks("@every 7s", 70_003, "skip") == [-3]
    assert ticks("@every 70s", 70_030, "skip") == [40]


def test_catching_up_is_bounded_by_the_last_hour_or_a_hundred() -> None:
    assert ticks("@every 1s", 86400) == list(range(-3599, 1))
    minutes = ticks("* * * * *", 86400 * 365)
    assert len(minutes) == 100
    assert {later - sooner for sooner, later in pairwise(minutes)} == {60}
    assert len(ticks("@daily", 86400 * 365)) == 100
    assert len(ticks("@daily", 86400 * 10)) == 10


@pytest.mark.parametrize(
    ("spec", "gap", "missed", "dropped"),
    [
        ("@every 1s", 3600, "all", False),
        ("@every 1s", 3602, "all", True),
        ("@daily", 86400 * 99, "all", False),
        ("@daily", 86400 * 110, "all", True),
        ("@every 1s", 86400, "once", False),
        ("@every 1s", 86400, "skip", False),
    ],
)
def test_ticks_that_are_lost_are_told(spec: str, gap: int, missed: str, dropped: bool) -> None:
    assert plan(parse(spec), NOW - gap, NOW, missed, GRACE).dropped is dropped
