"""The limits of each queue's archive: number of tasks and age in days."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from veredus.model.checks import whole

DEFAULT_SIZE = 9_999
"""The number that Asynq really keeps: its limit of 10,000 trims to one less."""
DEFAULT_DAYS = 90
_MOST_DAYS = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Tasks beyond these limits are deleted when the next task is archived. A Go server trims by its own fixed
    limits."""

    size: int = DEFAULT_SIZE
    days: int = DEFAULT_DAYS

    @classmethod
    def make(cls, size: int | None = None, days: int | None = None) -> ArchiveLimits:
        """The given values, else VEREDUS_ARCHIVE_SIZE and VEREDUS_ARCHIVE_DAYS, else Asynq's."""
        return cls(
            size=_setting("archive_size", size, "VEREDUS_ARCHIVE_SIZE", DEFAULT_SIZE, 100_000_000),
            days=_setting("archive_days", days, "VEREDUS_ARCHIVE_DAYS", DEFAULT_DAYS, _MOST_DAYS),
        )

    @property
    def most(self) -> int:
        """The limit that scripts take: they keep one less, like Asynq."""
        return self.size + 1

    @property
    def seconds(self) -> int:
        return self.days * 86400


ASYNQS = ArchiveLimits()
"""The limits that every Go server has."""


def _setting(name: str, given: Any, variable: str, default: int, most: int) -> int:
    if given is None and (text := os.environ.get(variable, "").strip()):
        name, given = variable, int(text) if text.isdigit() else text
    return whole(name, default if given is None else given, 1, most)
