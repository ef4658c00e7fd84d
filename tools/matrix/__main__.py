"""`python -m tools.matrix`: run the tests on every Python and server, and print what ran and what did not.

Valkey runs the whole suite of each Python; every other server those tests that run once per server. A cell that cannot
run here is skipped with its reason, never counted as passed. Ends with 0 when all cells that ran passed, 1 when one
failed, 2 when none could run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.matrix.cells import SERVERS, Cell, plan, run
from tools.matrix.pythons import claimed

ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    options = _arguments(argv)
    if options.install:
        _say(install_redis7())
    cells = plan(claimed(root), options.only, options.pytest)
    if not cells:
        _say(f"no such cell: --only takes {', '.join([*claimed(root), *SERVERS])} or both as 3.11/valkey")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for cell in cells:
            _say(f"{cell.name}: {cell.part}")
            run(root, cell, jobs=options.jobs, more=options.pytest, say=_say)
            _say(f"{cell.name}: {_verdict(cell)}")
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    print(json.dumps([cell.as_dict() for cell in cells], indent=2) if options.json else table(cells))
    return 1 if any(cell.is_bad for cell in cells) else 0 if any(cell.ran for cell in cells) else 2


def table(cells: Sequence[Cell]) -> str:
    """One line per cell, then the failed tests, then the reasons of skipped tests."""
    rows = [["Python", "server", "what", "passed", "failed", "skipped", "time", ""]]
    for cell in cells:
        counts = [f"{number:,}" for number in (cell.passed, cell.failed, cell.skipped)] if cell.ran else ["-"] * 3
        spent = f"{cell.seconds / 60:.1f} min" if cell.ran else "-"
        rows.append([cell.python, SERVERS[cell.server], cell.part, *counts, spent, _verdict(cell)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for cell in cells:
        lines += [f"FAILED {cell.name}: {name}" for name in cell.failures]
    for cell in cells:
        lines += [f"skipped {cell.name}: {number} x {reason}" for reason, number in cell.skips.items()]
    return "\n".join(lines)


def install_redis7() -> str:
    """Debian's redis-server, without starting it as a service; says what was done."""
    if shutil.which("redis-server"):
        return "redis-server is on PATH: nothing to install"
    if os.geteuid() or not shutil.which("apt-get"):
        return "--install needs root and apt-get; else put a redis-server 7 on PATH or name it in VEREDUS_TEST_REDIS7"
    quiet = os.environ | {"RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}  # level 1: services are not started
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "redis-server"]):
        ended = subprocess.run(["apt-get", *command], env=quiet, capture_output=True, text=True, check=False)
        if ended.returncode:
            return f"apt-get {command[0]} failed: {' '.join(ended.stderr.splitlines()[-2:])}"
    return "installed redis-server"


def _verdict(cell: Cell) -> str:
    if cell.is_bad:
        return f"FAILED ({cell.reason})" if cell.reason else "FAILED"
    return "ok" if cell.ran else f"SKIPPED: {cell.reason}"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tools.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = "3.12, redis7 or 3.12/redis7; may be given again"
    parser.add_argument("--only", action="append", default=[], metavar="CELL", help=only)
    parser.add_argument("--jobs", type=int, default=2, help="test processes at a time (default 2; 0: in one)")
    parser.add_argument("--json", action="store_true", help="the cells as JSON instead of the table")
    parser.add_argument("--install", action="store_true", help="install Debian's redis-server first (root, apt-get)")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST", help="after --: more for pytest, such as a folder")
    return parser.parse_args(argv)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
