"""Cron lines: the instants that robfig/cron v3 computes, and errors that name the field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model.cron import Every, parse, parse_line

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    """`2012-07-09 14:45` is UTC; an offset may follow."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# The cases of robfig/cron's own tests, without the field for seconds.
NEXT = [
    ("2012-07-09 14:45", "0/15 * * * *", "2012-07-09 15:00"),
    ("2012-07-09 14:59", "0/15 * * * *", "2012-07-09 15:00"),
    ("2012-07-09 14:59:59", "0/15 * * * *", "2012-07-09 15:00"),
    ("2012-07-09 14:59:59.999", "0/15 * * * *", "2012-07-09 15:00"),
    ("2012-07-09 15:45", "20-35/15 * * * *", "2012-07-09 16:20"),
    ("2012-07-09 23:46", "*/15 * * * *", "2012-07-10 00:00"),
    ("2012-07-09 23:45", "20-35/15 * * * *", "2012-07-10 00:20"),
    ("2012-07-09 23:35:51", "20-35/15 1/2 * * *", "2012-07-10 01:20"),
    ("2012-07-09 23:35:51", "20-35/15 10-12 * * *", "2012-07-10 10:20"),
    ("2012-07-09 23:35:51", "20-35/15 1/2 */2 * *", "2012-07-11 01:20"),
    ("2012-07-09 23:35:51", "20-35/15 * 9-20 * *", "2012-07-10 00:20"),
    ("2012-07-09 23:35:51", "20-35/15 * 9-20 Jul *", "2012-07-10 00:20"),
    ("2012-07-09 23:35", "0 0 9 Apr-Oct ?", "2012-08-09 00:00"),
    ("2012-07-09 23:35", "0 0 */5 Apr,Aug,Oct Mon", "2012-08-01 00:00"),
    ("2012-07-09 23:35", "0 0 */5 Oct Mon", "2012-10-01 00:00"),
    ("2012-07-09 23:35", "0 0 * Feb Mon", "2013-02-04 00:00"),
    ("2012-07-09 23:35", "0 0 * Feb Mon/2", "2013-02-01 00:00"),
    ("2012-12-31 23:59:45", "* * * * *", "2013-01-01 00:00"),
    ("2012-07-09 23:35", "0 0 29 Feb ?", "2016-02-29 00:00"),
    ("2012-07-09 23:35", "0 0 30 Feb ?", None),
    ("2012-07-09 23:35", "0 0 31 Apr ?", None),
    ("2012-07-09 23:35", "@yearly", "2013-01-01 00:00"),
    ("2012-07-09 23:35", "@annually", "2013-01-01 00:00"),
    ("2012-07-09 23:35", "@monthly", "2012-08-01 00:00"),
    ("2012-07-09 23:35", "@weekly", "2012-07-15 00:00"),
    ("2012-07-09 23:35", "@daily", "2012-07-10 00:00"),
    ("2012-07-09 23:35", "@midnight", "2012-07-10 00:00"),
    ("2012-07-09 23:35", "@hourly", "2012-07-10 00:00"),
    # Both days restricted: either will do, and a real step restricts.
    ("2012-07-14 23:59:59", "* * 1,15 * Sun", "2012-07-15 00:00"),
    ("2012-06-14 23:59:59", "* * 1,15 * Sun", "2012-06-15 00:00"),
    ("2012-07-31 23:59:59", "* * 1,15 * Sun", "2012-08-01 00:00"),
    ("2012-07-14 23:59:59", "* * */10 * Sun", "2012-07-15 00:00"),
    ("2012-07-14 23:59:59", "* * */1 * Mon", "2012-07-16 00:00"),
    ("2012-07-14 23:59:59", "* * * * Mon", "2012-07-16 00:00"),
    ("2012-07-08 23:59:59", "* * 1,15 * *", "2012-07-15 00:00"),
    ("2012-07-14 23:59:59", "* * ? * sun-TUE", "2012-07-15 00:00"),
]

IN_A_ZONE = [
    ("2012-03-11T00:00-05:00", NEW_YORK, "30 2 11 Mar ?", "2013-03-11T02:30-04:00"),
    # Every hour, when one is left out and when one comes twice.
    ("2012-03-11T00:00-05:00", NEW_YORK, "0 * * * ?", "2012-03-11T01:00-05:00"),
    ("2012-03-11T01:00-05:00", NEW_YORK, "0 * * * ?", "2012-03-11T03:00-04:00"),
    ("2012-03-11T03:00-04:00", NEW_YORK, "0 * * * ?", "2012-03-11T04:00-04:00"),
    ("2012-11-04T00:00-04:00", NEW_YORK, "0 * * * ?", "2012-11-04T01:00-04:00"),
    ("2012-11-04T01:00-04:00", NEW_YORK, "0 * * * ?", "2012-11-04T01:00-05:00"),
    ("2012-11-04T01:00-05:00", NEW_YORK, "0 * * * ?", "2012-11-04T02:00-05:00"),
    # Once a night.
    ("2012-03-11T00:00-05:00", NEW_YORK, "0 1 * * ?", "2012-03-11T01:00-05:00"),
    ("2012-03-11T01:00-05:00", NEW_YORK, "0 1 * * ?", "2012-03-12T01:00-04:00"),
    ("2012-03-11T00:00-05:00", NEW_YORK, "0 2 * * ?", "2012-03-12T02:00-04:00"),
    ("2012-03-11T00:00-05:00", NEW_YORK, "0 3 * * ?", "2012-03-11T03:00-04:00"),
    ("2012-11-04T00:00-04:00", NEW_YORK, "0 1 * * ?", "2012-11-04T01:00-04:00"),
    ("2012-11-04T01:00-04:00", NEW_YORK, "0 1 * * ?", "2012-11-04T01:00-05:00"),
    ("2012-11-04T01:00-05:00", NEW_YORK, "0 1 * * ?", "2012-11-05T01:00-05:00"),
    ("2012-11-04T00:00-04:00", NEW_YORK, "0 2 * * ?", "2012-11-04T02:00-05:00"),
    ("2012-11-04T02:00-05:00", NEW_YORK, "0 2 * * ?", "2012-11-05T02:00-05:00"),
    ("2012-11-04T00:00-04:00", NEW_YORK, "30 2 04 Nov ?", "2012-11-04T02:30-05:00"),
    ("2012-11-04T01:45-04:00", NEW_YORK, "30 1 04 Nov ?", "2012-11-04T01:30-05:00"),
    ("2012-11-04T00:00-04:00", NEW_YORK, "0 3 3 * ?", "2012-12-03T03:00-05:00"),
    # Midnight does not exist on some days of Sao Paulo, and came twice on others.
    ("2018-10-17T05:00-04:00", "America/Sao_Paulo", "0 9 10 * ?", "2018-11-10T06:00-05:00"),
    ("2018-02-14T05:00-05:00", "America/Sao_Paulo", "0 9 22 * ?", "2018-02-22T07:00-05:00"),
    ("2018-11-03T12:00-03:00", "America/Sao_Paulo", "0 0 * * *", "2018-11-05T00:00-02:00"),
    ("2016-01-03T13:09:03+05:30", "Asia/Kolkata", "14 14 * * *", "2016-01-03T14:14+05:30"),
    ("2016-01-03T14:15:03+05:30", "Asia/Kolkata", "14 14 * * ?", "2016-01-04T14:14+05:30"),
]


@pytest.mark.parametrize(("after", "spec", "expected"), NEXT)
def test_next_as_robfig_computes_it(after: str, spec: str, expected: str | None) -> None:
    assert parse(spec).next(at(after)) == (expected and at(expected))


@pytest.mark.parametrize(("after", "zone", "spec", "expected"), IN_A_ZONE)
@pytest.mark.parametrize("how", ["TZ=", "CRON_TZ=", ""])
def test_next_in_a_zone_as_robfig_computes_it(after: str, zone: str, spec: str, expected: str, how: str) -> None:
    schedule = parse(f"{how}{zone} {spec}") if how else parse(spec, zone)
    found = schedule.next(at(after))
    assert found == at(expected)
    assert found.tzinfo is UTC


EVERY = [
    ("2012-07-09 14:45", "15m", "2012-07-09 15:00"),
    ("2012-07-09 14:59:59", "15m", "2012-07-09 15:14:59"),
    ("2012-07-09 23:35:51", "44m24s", "2012-07-10 00:20:15"),
    ("2012-07-09 23:35:51", "25h44m24s", "2012-07-11 01:20:15"),
    ("2012-07-09 23:35", "2184h25m", "2012-10-09 00:00"),
    ("2012-12-31 23:59:45", "15s", "2013-01-01 00:00"),
    ("2012-07-09 14:45", "15m0.00000005s", "2012-07-09 15:00"),
    ("2012-07-09 14:45", "1999ms", "2012-07-09 14:45:01"),
    ("2012-07-09 14:45:00.005", "15m", "2012-07-09 15:00"),
]


@pytest.mark.parametrize(("after", "delay", "expected"), EVERY)
def test_every_counts_whole_seconds_from_a_whole_second(after: str, delay: str, expected: str) -> None:
    assert parse(f"@every {delay}").next(at(after)) == at(expected)


def test_every_stays_on_its_course_when_ticks_are_left_out() -> None:
    every = Every(7)
    assert every.aligned(100, 100) == 100
    assert every.aligned(100, 113) == 107
    assert every.aligned(100, 114) == 114


BAD = [
    ("", "spec"),
    ("   ", "spec"),
    ("* * * *", "exactly 5 fields"),
    ("0 * * * * *", r"exactly 5 fields \(minute hour day-of-month month day-of-week\), found 6"),
    ("60 * * * *", "spec: minute.*0-59"),
    ("* 24 * * *", "spec: hour.*0-23"),
    ("* * 0 * *", "spec: day of month.*1-31"),
    ("* * 32 * *", "spec: day of month"),
    ("* * * 13 *", "spec: month.*1-12 or jan-dec"),
    ("* * * * 7", "spec: day of week.*0-6 or sun-sat"),
    ("* * * * fry", "spec: day of week"),
    ("5-2 * * * *", r"spec: minute.*beginning \(5\) is not beyond its end \(2\)"),
    ("1-2-3 * * * *", "spec: minute"),
    ("1/2/3 * * * *", "spec: minute.*step"),
    ("*/0 * * * *", "spec: minute.*step that is a whole number of at least 1"),
    ("*/-1 * * * *", "spec: minute.*step"),
    ("-1 * * * *", "spec: minute"),
    (", * * * *", "spec: minute"),
    ("*-5 * * * *", "spec: minute"),
    ("½ * * * *", "spec: minute"),
    ("@dayly", "@daily"),
    ("@Daily", "did you mean '@daily'"),
    ("@every", "@every 30s"),
    ("@every 500ms", "spec: @every.*at least 1s"),
    ("@every -5s", "at least 1s"),
    ("@every 5", "a duration such as 30s"),
    ("@every five minutes", "a duration such as 30s"),
    ("TZ=Europe/Pariss * * * * *", "tz: got 'Europe/Pariss'.*IANA"),
    ("TZ=../etc/passwd * * * * *", "tz"),
    ("CRON_TZ=UTC", "a schedule after the time zone"),
]


@pytest.mark.parametrize(("spec", "message"), BAD)
def test_what_is_wrong_is_said_with_the_field_and_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(spec)


def test_a_zone_is_given_once() -> None:
    assert parse_line("CRON_TZ=Europe/Paris @daily", "Europe/Paris").spec == "CRON_TZ=Europe/Paris @daily"
    with pytest.raises(ConfigError, match="tz"):
        parse("TZ=Europe/Paris @daily", "UTC")
    with pytest.raises(ConfigError, match="tz"):
        parse("@daily", "Mars/Olympus")
    with pytest.raises(ConfigError, match="tz"):
        parse("@daily", " ")


def test_good_lines_in_unusual_spellings() -> None:
    assert parse("  0   12 * * MON,,tue ") == parse("0 12 * * 1-2")
    assert parse("5/15 * * * *") == parse("5-59/15 * * * *")
    assert parse_line("TZ=UTC  @every 1h").text == "@every 1h"


def _values(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.lists(number, min_size=1, max_size=4).map(lambda many: ",".join(map(str, many))),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.integers(2, 20).map(lambda step: f"*/{step}"),
    )


SPECS = st.tuples(_values(0, 59), _values(0, 23), _values(1, 31), st.just("*"), _values(0, 6)).map(" ".join)
AROUND_CHANGES = st.sampled_from(["2024-03-29", "2024-10-25", "2024-03-08", "2024-11-01", "2024-02-27", "2023-12-30"])


def _numbers(field: str, low: int, high: int) -> set[int]:
    if field == "*":
        return set(range(low, high + 1))
    if field.startswith("*/"):
        return set(range(low, high + 1, int(field[2:])))
    if "-" in field:
        first, last = field.split("-")
        return set(range(int(first), int(last) + 1))
    return {int(number) for number in field.split(",")}


@settings(max_examples=150, deadline=None)
@given(SPECS, AROUND_CHANGES, st.integers(0, 86399), st.sampled_from(["UTC", "Europe/Paris", NEW_YORK]))
@example("30 2 * * *", "2024-03-31", 0, "Europe/Paris")
@example("30 2 * * *", "2024-10-27", 0, "Europe/Paris")
def test_next_is_the_first_minute_that_fits(spec: str, day: str, second: int, zone: str) -> None:
    """Against looking at every minute of four days."""
    after = at(f"{day} 00:00") + timedelta(seconds=second)
    minute, hour, day_of_month, _, weekday = spec.split()
    minutes, hours = _numbers(minute, 0, 59), _numbers(hour, 0, 23)
    days, weekdays = _numbers(day_of_month, 1, 31), _numbers(weekday, 0, 6)
    both = "*" not in (day_of_month, weekday)

    def fits(wall: datetime) -> bool:
        by_day, by_week = wall.day in days, wall.isoweekday() % 7 in weekdays
        fits_day = by_day or by_week if both else by_day and by_week
        return wall.minute in minutes and wall.hour in hours and fits_day

    first = int(after.timestamp()) // 60 * 60 + 60
    place = ZoneInfo(zone)
    candidates = (datetime.fromtimestamp(first + 60 * n, place) for n in range(4 * 1440))
    expected = next((wall for wall in candidates if fits(wall)), None)
    found = parse(spec, zone).next(after)
    if expected is None:
        assert found is None or found > after + timedelta(days=4)
    else:
        assert found is not None
        assert found.timestamp() == expected.timestamp()  # two zones never agree about an hour that comes twice
