"""The golden data: what a real Asynq wrote."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "golden"


@cache
def load(name: str) -> Any:
    """The content of golden/<name>.json."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def scenarios() -> list[str]:
    """Every scenario with a dump of Redis."""
    return sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "vectors")


def raw(value: dict[str, Any] | None) -> bytes:
    """The bytes of a value as the files give it; no value is no bytes."""
    return base64.b64decode(value["b64"]) if value else b""
