"""Schedules in words."""

from __future__ import annotations

import pytest

from veredus.model.cron_words import in_words


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("0,30 * * * *", "at minutes 0,30 of every hour"),
        ("0 */6 * * *", "every 6 hours"),
        ("30 3 * * *", "at 03:30 every day"),
        ("0 9,13,17 * * 1-5", "at 09:00, 13:00 and 17:00 on Monday to Friday"),
        ("0 9 * * mon,thu", "at 09:00 on Monday and Thursday"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 1 1,jul *", "at 00:00 on day 1 of the month in January and July"),
        ("*/5 9-17 * * *", "at minute */5 of the hours 9-17"),
        ("@daily", "at 00:00 every day"),
        ("@weekly", "at 00:00 on Sunday"),
        ("@hourly", "every hour"),
        ("@every 90s", "every 1 minute 30 seconds"),
        ("@every 1h", "every hour"),
        ("CRON_TZ=Europe/Paris 0 9 * * *", "at 09:00 every day (Europe/Paris)"),
        ("every now and then", "every now and then"),
    ],
)
def test_a_schedule_in_words(spec: str, words: str) -> None:
    assert in_words(spec) == words
