"""One cell: the tests of one Python on one server, run by pytest, counted from its report."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.matrix import pythons

SERVERS = {"valkey": "Valkey 9", "redis6": "Redis 6.2", "redis7": "Redis 7"}
"""As in tests/support/servers.py."""
WHOLE, PER_SERVER = "whole suite", "tests that run per server"


@dataclass
class Cell:
    """What was asked for, and what came of it. Without `ran`, `reason` says why not."""

    python: str
    server: str
    part: str
    ran: bool = False
    reason: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.python}/{self.server}"

    @property
    def is_bad(self) -> bool:
        return self.failed > 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(versions: Sequence[str], only: Sequence[str] = (), more: Sequence[str] = ()) -> list[Cell]:
    """The cells that are asked for. `only` has Pythons, servers, or both with a slash between them; `more` is what
    pytest is given as well, which a cell tells, since it is then not the whole."""
    narrowed = f", only {' '.join(more)}" if more else ""
    cells = [
        Cell(version, server, (WHOLE if server == "valkey" else PER_SERVER) + narrowed)
        for version in versions
        for server in SERVERS
    ]
    return [cell for cell in cells if not only or {cell.python, cell.server, cell.name} & set(only)]


def run(root: Path, cell: Cell, *, jobs: int, more: Sequence[str], say: Callable[[str], None]) -> None:
    """Fill in the cell. `more` goes to pytest."""
    if pythons.find(cell.python) is None:
        cell.reason = f"Python {cell.python} is not installed here"
        return
    try:
        python = pythons.environment(root, cell.python, say)
    except pythons.CannotInstall as exc:
        cell.reason, cell.failed, cell.failures = f"cannot be installed: {exc}", 1, ["installation"]
        return
    cell.reason = missing(root, python, cell.server)
    if cell.reason:
        return
    folder = root / ".matrix" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log, report = folder / f"{cell.python}-{cell.server}.log", folder / f"{cell.python}-{cell.server}.xml"
    report.unlink(missing_ok=True)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        *(["-n", str(jobs)] if jobs else []),
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    command += [*([] if cell.server == "valkey" else ["-k", cell.server]), *more]
    begin = time.monotonic()
    environment = os.environ | {"VEREDUS_TEST_SERVERS": cell.server}
    code = _watch(command, root, environment, log, lambda percent: say(f"{cell.name} {percent} %"))
    cell.ran, cell.seconds = True, time.monotonic() - begin
    if report.exists():
        count(cell, report)
    if not cell.failed and (code or not cell.passed):
        cell.failed, cell.failures = 1, [f"pytest ended with {code} after {cell.passed} passes; see {log}"]


def missing(root: Path, python: str, server: str) -> str:
    """Why this server cannot be started by this Python; empty if it can."""
    code = (
        "import sys\nfrom tests.support import servers\n"
        "try: servers.binary(sys.argv[1])\nexcept servers.NoBinary as exc: print(exc)"
    )
    asked = subprocess.run([python, "-c", code, server], cwd=root, capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def count(cell: Cell, report: Path) -> None:
    """Passed, failed and skipped from pytest's report. An error before or after a test is a failure of that test."""
    verdicts: dict[str, str] = {}
    skips: Counter[str] = Counter()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            verdicts[name] = "failed"
        elif case.find("skipped") is not None:
            skip = case.find("skipped")
            skips[(skip.get("message") or "no reason given") if skip is not None else ""] += 1
            verdicts.setdefault(name, "skipped")
        else:
            verdicts.setdefault(name, "passed")
    counts = Counter(verdicts.values())
    cell.passed, cell.failed, cell.skipped = counts["passed"], counts["failed"], counts["skipped"]
    cell.failures = [name for name, verdict in verdicts.items() if verdict == "failed"]
    cell.skips = dict(skips.most_common())


def _watch(
    command: Sequence[str], root: Path, environment: dict[str, str], log: Path, told: Callable[[int], None]
) -> int:
    """Run it with its output in `log`; tell how far it is, in steps of ten. Stopped, it ends pytest and its workers."""
    last = 0
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, cwd=root, env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                out.flush()
                found = re.search(r"\[ *(\d+)%\]$", line.rstrip())
                if found and int(found[1]) // 10 > last:
                    last = int(found[1]) // 10
                    told(last * 10)
            return process.wait()
        except BaseException:
            # Servers of the tests die with them; an embedded one has a keeper of its own, in a group of its own.
            os.killpg(process.pid, signal.SIGKILL)
            raise
