"""A class name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import veredus

ROOT = Path(veredus.__file__).parent
# A frame, and the item that a peer makes of it for its application.
PAIRS = {name: ["model/frames.py", "peer/items.py"] for name in ("Gap", "Message", "Volatile")}
# What a handler raises, and what is written for it.
PAIRS["Retry"] = ["errors.py", "model/settlement.py"]


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice == PAIRS
