"""The journal of the demo's handlers: one file that all worker processes append to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "VEREDUS_DEMO_JOURNAL"


def note(kind: str, **facts: Any) -> None:
    """Append one line with a single write, which other processes cannot interleave."""
    line = json.dumps({"kind": kind, "at": time.time(), "pid": os.getpid(), **facts}) + "\n"
    with open(os.environ[VARIABLE], "ab", buffering=0) as journal:
        journal.write(line.encode())


class Journal:
    """Reads new lines of the journal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self.notes: dict[str, list[dict[str, Any]]] = {}
        path.touch()

    def read(self) -> None:
        with self._path.open("rb") as journal:
            journal.seek(self._read)
            data = journal.read()
        self._read += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            found = json.loads(line)
            self.notes.setdefault(found["kind"], []).append(found)

    def count(self, kind: str) -> int:
        return len({found["number"] for found in self.notes.get(kind, [])})
