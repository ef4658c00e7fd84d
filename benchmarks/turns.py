"""`make bench-turns BASE=commit`: this tree beside an earlier commit, in turns, row by row.

Machines are noisy, and drift: each turn measures both versions one after the other, every second turn in the other
order, and the medians are compared. Both run the benchmarks of this tree. With `--own`, each version runs its own,
where modules have moved in between. Only rows that both have are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.report import shown

ROOT = Path(__file__).resolve().parent.parent
Row = tuple[str, str, str]
"""Group, name and unit."""


def more_is_better(unit: str) -> bool:
    return unit == "/s"


def source_of(commit: str, folder: Path) -> Path:
    """The source folder of a commit, with its benchmarks beside it, taken from the history."""
    done = subprocess.run(["git", "archive", commit, "src", "benchmarks"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"BASE: git knows no commit {commit!r} with a folder src: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def measure(source: Path, benchmarks: Path, options: list[str]) -> dict[Row, float]:
    """Run the benchmarks in one folder with the source in another."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--json", *options],
        cwd=benchmarks,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"the benchmarks failed with the source in {source}:\n{done.stderr}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return {(row["group"], row["name"], row["unit"]): float(row["value"]) for row in rows}


def compared(before: list[float], after: list[float], unit: str) -> float:
    """How many times as good the median has become: below 1 is worse, whatever the unit."""
    one, two = statistics.median(before), statistics.median(after)
    if not one or not two:
        return 1.0 if one == two else float("nan")
    return two / one if more_is_better(unit) else one / two


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--turns", type=int, default=5, help="how often both are measured (default: 5)")
    parser.add_argument("--only", metavar="PART,...", help="some parts of the benchmarks")
    parser.add_argument("--full", action="store_true", help="full sizes, which take much longer")
    parser.add_argument("--own", action="store_true", help="each version runs the benchmarks of its own commit")
    parser.add_argument("--json", action="store_true", help="print the figures of every turn as JSON")
    arguments = parser.parse_args()
    options = [] if arguments.full else ["--quick"]
    options += ["--only", arguments.only] if arguments.only else []
    found: dict[str, dict[Row, list[float]]] = {side: defaultdict(list) for side in ("before", "after")}
    with tempfile.TemporaryDirectory(prefix="vb-base-") as name, Progress(console=Console(stderr=True)) as progress:
        sources = {"before": source_of(arguments.base, Path(name)), "after": ROOT / "src"}
        bar = progress.add_task("turns", total=2 * arguments.turns)
        for turn in range(arguments.turns):
            for side in sorted(sources, reverse=turn % 2 == 0):
                for row, value in measure(
                    sources[side], sources[side].parent if arguments.own else ROOT, options
                ).items():
                    found[side][row].append(value)
                progress.advance(bar)
    rows = [row for row in found["after"] if row in found["before"]]
    if arguments.json:
        facts = [dict(zip(("group", "name", "unit"), row, strict=True)) | {side: found[side][row] for side in found}
                 for row in rows]  # fmt: skip
        print(json.dumps(facts, indent=1))
        return
    table = Table(title=f"{arguments.turns} turns, medians; below 1 is worse than {arguments.base}")
    for column in ("", "what", "before", "after", "unit", "after / before", "worst and best turn"):
        table.add_column(column, justify="right" if column in ("before", "after", "after / before") else "left")
    for group, row_name, unit in rows:
        before, after = (found[side][group, row_name, unit] for side in ("before", "after"))
        each = sorted(compared([one], [two], unit) for one, two in zip(before, after, strict=True))
        table.add_row(
            group, row_name, shown(statistics.median(before)), shown(statistics.median(after)), unit,
            f"{compared(before, after, unit):.2f}", f"{each[0]:.2f} to {each[-1]:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
