"""The records of attempts: bounded lines, gaps that are named, and bytes that are read back."""

from __future__ import annotations

import json

import pytest

from veredus.model.attempts import KEPT, MOST_LINE, MOST_LINES, AttemptInfo, LogLines, with_gaps
from veredus.model.failure import class_of, cut_traceback, place_of, text_of
from veredus.model.redaction import Sensitive, redacted, redacted_bytes
from veredus.wire.attempts import FIELDS, decode_attempts, encode_attempt, encode_plain_attempt


def _records(*numbers: int, ended_at: float = 100.0) -> list[AttemptInfo]:
    return [AttemptInfo(attempt=number, outcome="failed", ended_at=ended_at) for number in numbers]


def _shown(attempts: list[AttemptInfo]) -> list[tuple[int, str]]:
    return [(one.attempt, one.outcome) for one in attempts]


def test_gaps_are_named_where_they_are() -> None:
    assert _shown(with_gaps(_records(1, 2), total=2, retried=2, ended_at=100)) == [(1, "failed"), (2, "failed")]
    found = with_gaps(_records(1, 3), total=2, retried=3, ended_at=100)
    assert _shown(found) == [(1, "failed"), (2, "not recorded"), (3, "failed")]
    found = with_gaps(_records(1), total=1, retried=1, ended_at=150)
    assert _shown(found) == [(1, "failed"), (2, "not recorded")], "something failed after the last record"
    found = with_gaps([], total=0, retried=1, ended_at=150)
    assert _shown(found) == [(1, "not recorded")], "one gap for one attempt"
    assert with_gaps([], total=0, retried=0, ended_at=0) == []


def test_attempts_that_were_dropped_are_no_gaps() -> None:
    numbers = range(5, 15)
    found = with_gaps(_records(*numbers), total=14, retried=14, ended_at=100)
    assert [one.attempt for one in found] == list(numbers)
    repeated = (9, 9, 9, 10, 10, 11, 12, 13, 14, 14)  # attempts that did not count
    found = with_gaps(_records(*repeated), total=20, retried=14, ended_at=100)
    assert [one.attempt for one in found] == list(repeated)
    assert len(with_gaps([], total=0, retried=500, ended_at=0)) == KEPT


def test_the_last_lines_are_kept() -> None:
    lines = LogLines()
    for n in range(MOST_LINES + 3):
        lines.add(float(n), f"{n} " + "x" * 1000)
    taken = lines.taken()
    assert taken[0] == (3.0, "... 3 earlier lines left out ...")
    assert len(taken) == MOST_LINES + 1
    assert all(len(text.encode()) <= MOST_LINE for _, text in taken)


def test_a_record_is_read_back_and_a_damaged_one_left_out() -> None:
    one = AttemptInfo(
        attempt=12, outcome="failed", worker="h:1:a", started_at=1.5, ended_at=2.25, error_class="E", error="ü\0",
        traceback="t", place="p:1", log=((1.75, "line"),),
    )  # fmt: skip
    values: list[bytes | None] = [b"12", *[None] * KEPT]
    values[1 + 12 % KEPT] = encode_attempt(one)
    values[1 + 11 % KEPT] = b"[1]"
    assert decode_attempts(values) == (12, [one])
    assert decode_attempts([b"x", *[None] * KEPT]) == (0, [])
    assert decode_attempts([None] * len(FIELDS)) == (0, [])
    assert one.seconds == 0.75
    assert one.as_dict()["log"] == [{"at": "1970-01-01T00:00:01.75Z", "text": "line"}]


@pytest.mark.parametrize("at", [1.0, 1_800_000_000.1234567, 0.0000001])
def test_the_record_of_an_attempt_without_an_error_has_the_same_bytes(at: float) -> None:
    one = AttemptInfo(attempt=3, outcome="succeeded", worker='h"ü:1:a', started_at=at, ended_at=at + 0.5)
    assert encode_plain_attempt(3, "succeeded", json.dumps(one.worker), at, at + 0.5) == encode_attempt(one)


def test_class_text_and_place_of_an_error() -> None:
    class Own(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    try:
        raise Own
    except Own as exc:
        error = exc
    assert class_of(error).endswith("test_class_text_and_place_of_an_error.<locals>.Own")
    assert (class_of(ValueError()), text_of(error), text_of(ValueError("x" * 99), 50)[:3]) == ("ValueError", "", "xxx")
    assert place_of(error).startswith("tests.unit.test_model_attempts.test_class_text_and_place_of_an_error:")
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("x" * 3)
    assert ".test_class_text_and_place_of_an_error:" in place_of(raised.value), "not the library's own line"
    assert place_of(ValueError()) == ""
    assert len(cut_traceback("line\n" * 9999, 100).encode()) <= 100


def test_a_hook_that_fails_reveals_nothing() -> None:
    what = Sensitive("payload", "t")
    assert redacted(None, "secret", what) == "secret"
    assert redacted(lambda text, what: None, "secret", what).startswith("(redacted: the hook returned NoneType")  # type: ignore[arg-type,return-value]
    assert redacted_bytes(lambda text, what: f"{what.kind} {len(text)}", b"\xff12", what) == b"payload 3"
    assert redacted_bytes(lambda text, what: "x", b"", what) == b""
