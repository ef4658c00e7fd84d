"""Runs of pytest in a copy, and what their ends mean."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.copies import Copy

KILLED = "killed"
TIMED_OUT = "timed out"
SURVIVED = "survived"
ERROR = "error"
_MEANINGS = {2: "interrupted", 3: "an error inside pytest", 4: "a usage error", 5: "no tests were collected"}


class Stopped(Exception):
    """The user has had enough."""


@dataclass(frozen=True)
class Run:
    """How it ended: `passed` or `failed` as a whole, `timed out`, or `error` with the reason in `why`."""

    how: str
    seconds: float
    failed: tuple[str, ...] = ()
    why: str = ""
    output: str = ""


def run(copy: Copy, tests: tuple[str, ...], options: tuple[str, ...], limit: float, stop: threading.Event) -> Run:
    """Run these tests in the copy, in a process group of their own, until they end, time is up or `stop` is set."""
    report, log = copy.root / ".report.xml", copy.root / ".log"
    report.unlink(missing_ok=True)
    command = [
        str(copy.python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *options,
        *tests,
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    environment["PATH"] = f"{copy.python.parent}{os.pathsep}{environment.get('PATH', '')}"
    environment.setdefault("VEREDUS_TEST_HISTORY", str(Path(__file__).parents[2]))  # the copy has none
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=copy.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = _wait(process, begin + limit, stop)
        finally:
            _end_group(process)
            copy.end_strays()
    seconds = time.monotonic() - begin
    written = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        return Run(TIMED_OUT, seconds, why=f"after {limit:g} s", output=written)
    if code == 0:
        return Run("passed", seconds, output=written)
    failed, unread = _failures(report)
    if unread or (code == 4 and "ERROR collecting" in written) or "ImportError while loading conftest" in written:
        return Run(ERROR, seconds, why="it does not import: " + _reason(written), output=written)
    if failed and (code == 1 or (code == 2 and "stopping after" in written)):  # 2: xdist at the first failure
        return Run("failed", seconds, failed=failed, output=written)
    meaning = "pytest did not start" if code == 1 else _MEANINGS.get(code, "pytest was ended by a signal")
    return Run(ERROR, seconds, why=f"{meaning} (exit code {code}): {_reason(written)}", output=written)


def _wait(process: subprocess.Popen[bytes], end: float, stop: threading.Event) -> int | None:
    """The exit code; None when the time is up."""
    while True:
        try:
            return process.wait(0.05)
        except subprocess.TimeoutExpired:
            if stop.is_set():
                raise Stopped from None
            if time.monotonic() > end:
                return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # nobody is left of it
    process.wait()


def _failures(report: Path) -> tuple[tuple[str, ...], bool]:
    """The names of the tests that failed, and whether files could not even be imported."""
    try:
        root = ET.parse(report).getroot()
    except (OSError, ET.ParseError):
        return (), False
    failed, unread = [], False
    for case in root.iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            unread |= problem.get("message") == "collection failure"
            failed.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}")
    return tuple(dict.fromkeys(failed)), unread


def _reason(output: str) -> str:
    """The line of pytest's output that says the most: the first error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("E   ", "ERROR:")) and line.removeprefix("E").strip():
            return line.removeprefix("E ").strip()[:200]
    return lines[-1][:200] if lines else "it wrote nothing"
