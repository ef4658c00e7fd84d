"""Counting durations in buckets, and summing up what was counted."""

from __future__ import annotations

import random

import pytest

from veredus.model.attempts import AttemptInfo
from veredus.model.error_groups import group_id
from veredus.model.type_stats import Counted, Durations, Window, buckets_of, by_type, middle_of
from veredus.wire.stats import decode_counted, decode_error, encode_durations
from veredus.worker.type_counts import UNKNOWN, TypeCounts


def _bucket(milliseconds: float) -> int:
    ((bucket, number),) = buckets_of([milliseconds]).items()
    assert number == 1
    return bucket


@pytest.mark.parametrize("milliseconds", [1e-9, 1e-5, 0.001, 0.0312, 0.5, 1.0, 59.9, 86_400_000.0])
def test_the_middle_of_a_bucket_is_near(milliseconds: float) -> None:
    assert middle_of(_bucket(milliseconds)) == pytest.approx(milliseconds, rel=0.07)


def test_buckets_are_in_order() -> None:
    rng = random.Random(7)
    values = sorted(rng.uniform(0, 1) ** 9 * 1e7 for _ in range(500))
    buckets = list(map(_bucket, values))
    assert buckets == sorted(buckets)
    assert sum(buckets_of(values).values()) == 500
    assert buckets_of([-1, -1.0, 0]) == {0: 1}, "what is unknown is left out"
    assert (middle_of(0), middle_of(_bucket(float("inf")))) == (0.0, 0.0)


def test_percentiles() -> None:
    durations = Durations()
    for n in range(1, 101):
        durations.add(Durations(10.0 * n, buckets_of([10 * n])))
    assert durations.percentile(0.5) == pytest.approx(0.5, rel=0.1)
    assert durations.percentile(0.99) == pytest.approx(0.99, rel=0.1)
    assert durations.as_dict()["mean"] == pytest.approx(0.505)
    assert (Durations().percentile(0.5), Durations().as_dict()["mean"]) == (None, None)


def test_a_window_ends_with_the_span_of_now() -> None:
    assert Window.last(3600, 7230) == Window(7260 - 3600, 7260, 60)
    assert Window.last(1, 7230) == Window(7200, 7260, 60)
    assert Window.last(86_400, 90_001) == Window(93_600 - 86_400, 93_600, 3600)


def test_rows_outside_of_the_window_are_left_out() -> None:
    window = Window.last(120, 600)
    rows = [("a", 480, Counted(9)), ("a", 540, Counted(1)), ("a", 600, Counted(2)), ("b", 600, Counted(5, 1))]
    found = by_type(rows, window)
    assert [(one.type, one.counted.processed, [at for at, _ in one.series]) for one in found] == [
        ("b", 5, [600]),
        ("a", 3, [540, 600]),
    ]


def test_what_a_worker_counts_is_read_back() -> None:
    counts = TypeCounts()
    for now in (59.0, 61.0, 59.5):  # the clock of the server is set back
        (counts.note_failed if now > 60 else counts.note)("q", "t", now, 250.0, 1500)
    counts.note("q", "t", 59.6, UNKNOWN, UNKNOWN)
    attempt = AttemptInfo(
        attempt=1, outcome="failed", error_class="ValueError", place="m.f:1", ended_at=61.0, error="x"
    )
    counts.note_error("q", "t", "id", attempt)
    ((types, errors),) = counts.take().values()
    assert counts.take() == {}
    assert [(row.minute, row.processed, row.failed) for row in types] == [(0, 3, 0), (1, 1, 1)]
    counted = decode_counted(f"2 0|{types[0].run}|{types[0].wait}".encode())
    assert counted is not None
    assert (counted.run.total, counted.wait.total, counted.run.count) == (500.0, 3000.0, 2)
    assert encode_durations(Durations()) == "0"
    (row,) = errors
    assert (row.minute, row.group_id, row.amount, row.at) == (1, group_id("t", "ValueError", "m.f:1"), 1, 61)
    assert decode_error(f"5 61\n{row.error}".encode()) == (
        5, 61, {"type": "t", "class": "ValueError", "place": "m.f:1", "error": "x", "task": "id"}
    )  # fmt: skip
    assert decode_error(b"x") is None
    assert decode_error(b"1 2\n[]") is None
    assert decode_counted(b"1 2|x") is None


def test_many_durations_are_folded_in_between() -> None:
    counts = TypeCounts()
    for n in range(10_000):
        counts.note("q", "t", 1.0, float(n % 7), 1)
    (row,) = counts.take()["q"][0]
    counted = decode_counted(f"{row.processed} {row.failed}|{row.run}|{row.wait}".encode())
    assert counted is not None
    assert (counted.processed, counted.run.count, counted.wait.total) == (10_000, 10_000, 10_000.0)
