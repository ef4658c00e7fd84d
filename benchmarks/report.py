"""The figures as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """Rows of (group, name, value, unit, remark)."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, group: str, name: str, value: float, unit: str, remark: str = "", target: str = "") -> None:
        self.rows.append(
            {"group": group, "name": name, "value": value, "unit": unit, "remark": remark, "target": target}
        )

    def value(self, name: str) -> float:
        return next(float(row["value"]) for row in self.rows if row["name"] == name)

    def print(self, console: Console, title: str) -> None:
        table = Table(title=title)
        for column in ("", "what", "seen", "unit", "beside", "aim"):
            table.add_column(column, justify="right" if column == "seen" else "left")
        last = ""
        for row in self.rows:
            group = row["group"] if row["group"] != last else ""
            last = row["group"]
            table.add_row(group, row["name"], shown(row["value"]), row["unit"], row["remark"], row["target"])
        console.print(table)

    def save(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(self.rows, indent=1) + "\n")


def shown(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def bar_chart(path: Path, title: str, bars: list[tuple[str, float]], unit: str) -> None:
    """A horizontal bar chart as SVG, readable on light and dark pages."""
    width, row, left = 760, 30, 230
    height = 60 + row * len(bars)
    most = max(value for _, value in bars) or 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="14">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="30" font-size="17" font-weight="bold" fill="#1f2937">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(bars):
        y = 50 + number * row
        length = max(2, (width - left - 120) * value / most)
        colour = "#b45309" if name.startswith("Veredus") else "#94a3b8"
        lines.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end" fill="#1f2937">{escape(name)}</text>')
        lines.append(f'<rect x="{left}" y="{y + 3}" width="{length:.0f}" height="20" rx="3" fill="{colour}"/>')
        lines.append(
            f'<text x="{left + length + 8:.0f}" y="{y + 17}" fill="#1f2937">{shown(value)} {escape(unit)}</text>'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")
