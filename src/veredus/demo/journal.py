"""What the demo's handlers saw, written line by line to one file that all worker processes share."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "VEREDUS_DEMO_JOURNAL"


def note(kind: str, **facts: Any) -> None:
    """Append one line; a single write to a file opened for appending is never torn apart by another process."""
    line = json.dumps({"kind": kind, "at": time.time(), "pid": os.getpid(), **facts}) + "\n"
    with open(os.environ[VARIABLE], "ab", buffering=0) as journal:
        journal.write(line.encode())


class Journal:
    """Reads what was appended since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self.notes: dict[str, list[dict[str, Any]]] = {}
        path.touch()

    def look(self) -> None:
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
