"""`python -m benchmarks.picture`: draw docs/images/bench.svg from the figures of a real run, in figures.json.

`python -m benchmarks.picture artifacts/peers.json` takes over the figures of that run of `make bench-peers` first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.report import bar_chart

FIGURES = Path(__file__).parent / "figures.json"
PICTURE = Path(__file__).parents[1] / "docs/images/bench.svg"


def take(run: Path, figures: Path = FIGURES) -> None:
    """The drain rates of a run, the fastest first."""
    found = json.loads(run.read_text(encoding="utf-8"))
    bars = dict(sorted(((name, round(rate)) for name, rate in found["drain"].items()), key=lambda bar: -bar[1]))
    transport = {"tcp": "loopback TCP", "unix": "unix socket"}[found["transport"]]
    title = f"Tasks per second, one worker process each ({transport}, {found['cores']} shared cores)"
    figures.write_text(json.dumps({"title": title, "unit": "/s", "bars": bars}, indent=1) + "\n", encoding="utf-8")


def draw(path: Path = PICTURE) -> None:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    bars = [(name, float(value)) for name, value in figures["bars"].items()]
    bar_chart(path, figures["title"], bars, figures["unit"])


if __name__ == "__main__":
    for given in sys.argv[1:]:
        take(Path(given))
    draw()
