"""`python -m benchmarks.picture`: draw docs/images/bench.svg from the figures of a real run, in figures.json."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report import bar_chart

FIGURES = Path(__file__).parent / "figures.json"
PICTURE = Path(__file__).parents[1] / "docs/images/bench.svg"


def draw(path: Path = PICTURE) -> None:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    bars = [(name, float(value)) for name, value in figures["bars"].items()]
    bar_chart(path, figures["title"], bars, figures["unit"])


if __name__ == "__main__":
    draw()
