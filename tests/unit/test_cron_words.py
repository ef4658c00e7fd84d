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
        ("0,30 * * * *", "at minutes 0 and 30 of every hour"),
        ("0 */6 * * *", "every 6 hours"),
        ("30 3 * * *", "at 03:30 every day"),
        ("0 9,13,17 * * 1-5", "at 09:00, 13:00 and 17:00 on Monday to Friday"),
        ("0 9 * * mon,thu", "at 09:00 on Monday and Thursday"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 1 1,jul *", "at 00:00 on day 1 of the month in January and July"),
        ("*/5 9-17 * * *", "every 5 minutes of the hours 9 to 17"),
        ("*/10 9-17 * * 1", "every 10 minutes of the hours 9 to 17 on Monday"),
        ("0 9-17 * * mon-fri", "every hour from 09:00 to 17:00 on Monday to Friday"),
        ("15 9-17 * * *", "at minute 15 of the hours 9 to 17"),
        ("30 */2 * * *", "at minute 30, every 2 hours"),
        ("0,30 8 * * *", "at minutes 0 and 30 of the hour 8"),
        ("* 8,20 * * *", "every minute of the hours 8 and 20"),
        ("0-10 * * * *", "at minutes 0 to 10 of every hour"),
        ("0 3 1,15 * *", "at 03:00 on days 1 and 15 of the month"),
        ("0 3 */2 * *", "at 03:00 every 2 days of the month"),
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
