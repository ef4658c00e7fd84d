"""The record of an attempt as the hash of its task has it: JSON, in one of ten fields that are used in turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from veredus.model.attempts import KEPT, AttemptInfo

COUNT = "attempts"
"""The field with the number of attempts that were recorded."""
FIELDS = (COUNT, *(f"attempt:{n}" for n in range(KEPT)))
"""The count, and the fields of the records: the record n is in the field n modulo 10. lua/include/attempts.lua writes
them."""


def encode_attempt(attempt: AttemptInfo) -> bytes:
    record: dict[str, Any] = {
        "attempt": attempt.attempt,
        "outcome": attempt.outcome,
        "worker": attempt.worker,
        "start": round(attempt.started_at, 6),
        "end": round(attempt.ended_at, 6),
    }
    named = (
        ("class", attempt.error_class),
        ("error", attempt.error),
        ("place", attempt.place),
        ("traceback", attempt.traceback),
        ("log", attempt.log),
    )
    record.update((name, value) for name, value in named if value)
    return _encode(record).encode()


_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_plain_attempt(attempt: int, outcome: str, worker: str, started_at: float, ended_at: float) -> bytes:
    """`encode_attempt` of an attempt without an error and without log lines, as most are. `worker` is JSON already."""
    start, end = round(started_at, 6), round(ended_at, 6)
    return f'{{"attempt":{attempt},"outcome":"{outcome}","worker":{worker},"start":{start!r},"end":{end!r}}}'.encode()


def decode_attempts(values: Sequence[bytes | None]) -> tuple[int, list[AttemptInfo]]:
    """How many attempts were recorded, and the last ones, the first one first. `values` are those of FIELDS. A record
    that cannot be read is left out."""
    try:
        total = max(0, int(values[0] or 0))
    except ValueError:
        return 0, []
    found = [decode_attempt(values[1 + number % KEPT]) for number in range(max(1, total - KEPT + 1), total + 1)]
    return total, [one for one in found if one is not None]


def record_field(count: bytes) -> str:
    """The field of the last record, by the number of all."""
    return f"attempt:{int(count) % KEPT}" if count.isdigit() and len(count) < 20 else COUNT


def decode_attempt(data: bytes | None) -> AttemptInfo | None:
    """None for what is no record."""
    try:
        record: Mapping[str, Any] = json.loads(data or b"")
        return AttemptInfo(
            attempt=int(record["attempt"]),
            outcome=str(record["outcome"]),
            worker=str(record.get("worker", "")),
            started_at=float(record.get("start", 0)),
            ended_at=float(record.get("end", 0)),
            error_class=str(record.get("class", "")),
            error=str(record.get("error", "")),
            place=str(record.get("place", "")),
            traceback=str(record.get("traceback", "")),
            log=tuple((float(at), str(text)) for at, text in record.get("log", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
