"""What was measured of both sides, row by row, and how they compare."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from benchmarks.report import shown


@dataclass
class Row:
    """One value per round of each side. `more` is whether more is better."""

    group: str
    name: str
    unit: str
    more: bool
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def ratio(self) -> float | None:
        """By how much Veredus is better: the median of the rounds' ratios. None where there is nothing to compare, or a
        time is not above zero because tasks began early."""
        pairs = zip(self.ours, self.theirs, strict=False)
        ratios = [(our / their if self.more else their / our) for our, their in pairs if our > 0 < their]
        return statistics.median(ratios) if ratios else None


class Comparison:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, group: str, name: str, unit: str, value: float, *, ours: bool, more: bool = False) -> None:
        row = next((row for row in self.rows if (row.group, row.name) == (group, name)), None)
        if row is None:
            row = Row(group, name, unit, more)
            self.rows.append(row)
        (row.ours if ours else row.theirs).append(value)

    def as_list(self) -> list[dict[str, Any]]:
        return [
            {
                "group": row.group, "name": row.name, "unit": row.unit, "veredus": _middle(row.ours),
                "go": _middle(row.theirs), "ratio": row.ratio(), "rounds": {"veredus": row.ours, "go": row.theirs},
            }
            for row in self.rows
        ]  # fmt: skip

    def table(self, title: str, name: str) -> Table:
        table = Table(title=title)
        for column in ("", "what", "unit", name, "Veredus", "Veredus is better by"):
            table.add_column(column, justify="left" if column in ("", "what", "unit") else "right")
        last = ""
        for row in self.rows:
            ratio, group = row.ratio(), row.group if row.group != last else ""
            last = row.group
            values = [shown(_middle(found)) for found in (row.theirs, row.ours)]
            table.add_row(group, row.name, row.unit, *values, "" if ratio is None else f"{ratio:.2f} x")
        return table


def _middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
