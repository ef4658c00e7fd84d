"""Finds the next time of a cron line: the first instant that all its fields allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

YEARS = 5
"""A line without a match for this long never fires."""


@dataclass(frozen=True, slots=True)
class CronField:
    """The values that a field allows; `restricted` is False for `*` and `?`."""

    values: frozenset[int]
    restricted: bool

    def __contains__(self, value: int) -> bool:
        return value in self.values


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields in a time zone."""

    minute: CronField
    hour: CronField
    day: CronField
    month: CronField
    weekday: CronField
    location: tzinfo

    def next(self, after: datetime) -> datetime | None:
        return to_datetime(self.next_unix(after.timestamp()))

    def next_unix(self, after: float) -> int | None:
        return _Search(self, math.floor(after) + 1).run()

    def aligned(self, at: int, since: int) -> int:
        return since

    def fits_day(self, local: datetime) -> bool:
        """If both day fields are restricted, either may match; else both must."""
        day, weekday = local.day in self.day, local.isoweekday() % 7 in self.weekday
        if self.day.restricted and self.weekday.restricted:
            return day or weekday
        return day and weekday


class _Search:
    """From the largest field to the smallest: each is moved forward until it fits, the smaller ones are reset, and an
    overflow starts again at the top.

    Months and days move on the calendar, hours and minutes on the time line. As in robfig/cron, an hour that a clock
    change skips is skipped, and one that it repeats fires twice.
    """

    def __init__(self, cron: Cron, start: int) -> None:
        self._cron = cron
        self._at = start
        self._local = self._look()
        self._reset = False
        """Whether the smaller fields have been reset already."""

    def run(self) -> int | None:
        last_year = min(self._local.year + YEARS, 9990)
        while self._local.year <= last_year:
            if self._find_month() and self._find_day() and self._find_hour() and self._find_minute():
                return self._at
        return None

    def _find_month(self) -> bool:
        while self._local.month not in self._cron.month:
            if not self._reset:
                self._reset = True
                self._go(self._instant(self._local.replace(day=1, hour=0, minute=0, second=0)))
            self._go(self._instant(_add_month(self._local)))
            if self._local.month == 1:
                return False
        return True

    def _find_day(self) -> bool:
        while not self._cron.fits_day(self._local):
            if not self._reset:
                self._reset = True
                self._go(self._instant(self._local.replace(hour=0, minute=0, second=0)))
            self._go(self._instant(self._local.replace(tzinfo=None) + timedelta(days=1)))
            hour = self._local.hour
            if hour:  # there is no midnight on this day
                self._go(self._at + 3600 * (24 - hour if hour > 12 else -hour))
            if self._local.day == 1:
                return False
        return True

    def _find_hour(self) -> bool:
        while self._local.hour not in self._cron.hour:
            if not self._reset:
                self._reset = True
                self._go(self._instant(self._local.replace(minute=0, second=0)))
            self._go(self._at + 3600)
            if self._local.hour == 0:
                return False
        return True

    def _find_minute(self) -> bool:
        while self._local.minute not in self._cron.minute:
            if not self._reset:
                self._reset = True
                self._go(self._at - self._at % 60)
            self._go(self._at + 60)
            if self._local.minute == 0:
                return False
        if self._local.second:  # it fires at the full minute only
            self._reset = True
            self._go(self._at + 60 - self._local.second)
            return False
        return True

    def _go(self, unix: int) -> None:
        self._at = unix
        self._local = self._look()

    def _look(self) -> datetime:
        return datetime.fromtimestamp(self._at, self._cron.location)

    def _instant(self, wall: datetime) -> int:
        """The Unix second of a wall time. One that does not exist, or exists twice, is resolved as Go does it: by the
        offset that was valid at that time minus the offset that would be valid if the wall showed UTC."""
        as_utc = int(wall.replace(tzinfo=UTC).timestamp())
        return as_utc - self._offset(as_utc - self._offset(as_utc))

    def _offset(self, unix: int) -> int:
        offset = datetime.fromtimestamp(unix, self._cron.location).utcoffset()
        return 0 if offset is None else int(offset.total_seconds())


def _add_month(wall: datetime) -> datetime:
    """A day that the month does not have becomes a day of the next month, as in Go."""
    year, month = (wall.year + 1, 1) if wall.month == 12 else (wall.year, wall.month + 1)
    return wall.replace(year=year, month=month, day=1, tzinfo=None) + timedelta(days=wall.day - 1)


def to_datetime(unix: int | None) -> datetime | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC)
