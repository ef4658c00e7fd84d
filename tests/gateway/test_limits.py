"""Rates and levels, with time as an argument."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from veredus.gateway.limits import Bucket, Level, Overload, SlidingWindow, level


def _overload(**given: float) -> Overload:
    settings = {"connections": 10, "request_rate": 100.0, "upstream": 5, "warn_share": 0.8, **given}
    return Overload(**settings)  # type: ignore[arg-type]


def test_a_bucket_lets_its_burst_pass_and_then_its_rate() -> None:
    bucket = Bucket(50.0, 100.0, 0.0)
    assert [bucket.take(0.0) for _ in range(100)] == [0.0] * 100
    wait = bucket.take(0.0)
    assert wait == pytest.approx(0.02)
    assert bucket.take(wait) == 0.0
    passed = sum(bucket.take(wait + step / 1000) == 0.0 for step in range(10_000))
    assert 495 <= passed <= 505


def test_a_bucket_says_how_long_to_wait_from_now() -> None:
    bucket = Bucket(50.0, 1.0, 0.0)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.005) == pytest.approx(0.015)
    assert bucket.take(0.015) == pytest.approx(0.005)
    assert bucket.take(0.02) == 0.0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = Bucket(50.0, 10.0, 0.0)
    assert sum(bucket.take(1000.0) == 0.0 for _ in range(100)) == 10


def test_e1_the_window_slides_and_has_no_black_out() -> None:
    """A steady load above the limit is let in at the limit in every second; it is not all let in and then none."""
    overload = _overload(request_rate=2000.0, upstream=10**9)
    let_in = [0] * 10
    for step in range(25_000):  # 2,500 per second for 10 s
        now = 100.0 + step / 2500
        if overload.admit_request(now) is None:
            let_in[step // 2500] += 1
    assert let_in[0] <= 2100
    assert all(1900 <= count <= 2100 for count in let_in[1:]), let_in


def _most_in_a_second(admitted: list[float]) -> int:
    """Of any second, whenever it begins."""
    return max(bisect_left(admitted, first + 1.0) - n for n, first in enumerate(admitted))


def test_e1_no_second_whatever_its_beginning_gets_more_than_the_limit() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    overload = _overload(request_rate=100.0, upstream=10**9)
    now, admitted = 50.0, []
    for _ in range(5000):
        now += dice.expovariate(300.0)
        if overload.admit_request(now) is None:
            admitted.append(now)
    assert _most_in_a_second(admitted) == 100
    assert len(admitted) > 0.97 * 100 * (now - 50.0), "and hardly less is let in"


def test_e1_a_burst_counts_for_a_whole_second() -> None:
    """A hundred at once: all of them are in every second up to their own end."""
    overload = _overload(request_rate=100.0, upstream=10**9)
    admitted = []
    for step in range(3000):
        now = 50.049 + step / 1000
        for _ in range(10 if step else 150):
            if overload.admit_request(now) is None:
                admitted.append(now)
    assert admitted[:100] == [50.049] * 100
    assert _most_in_a_second(admitted) == 100
    assert admitted[100] < 51.06, "and not for much longer"


def test_refused_requests_do_not_count() -> None:
    window = SlidingWindow()
    assert window.rate(5.0) == 0
    overload = _overload(request_rate=10.0, upstream=10**9)
    for _ in range(1000):
        overload.admit_request(7.0)
    assert overload.request_rate(7.0) == 10
    assert overload.admit_request(8.1) is None


def test_the_window_survives_a_long_silence() -> None:
    window = SlidingWindow()
    for _ in range(100):
        window.add(1.0)
    assert window.rate(10_000.0) == 0


def test_levels_warn_before_they_refuse() -> None:
    assert level(79, 100, 0.8) is Level.NORMAL
    assert level(80, 100, 0.8) is Level.WARN
    assert level(100, 100, 0.8) is Level.REJECT
    overload = _overload()
    overload.connections = 8
    assert overload.levels(1.0) == {"connections": Level.WARN, "requests": Level.NORMAL, "upstream": Level.NORMAL}


def test_too_many_unanswered_requests_are_refused_as_retryable() -> None:
    overload = _overload()
    overload.upstream = 5
    refusal = overload.admit_request(1.0)
    assert refusal is not None
    assert (refusal.code, refusal.retryable) == (503, True)
    assert refusal.retry_after_ms > 0
    overload.upstream = 4
    assert overload.admit_request(1.0) is None


def test_connections_beyond_the_limit_are_refused_and_counted() -> None:
    overload = _overload(connections=2)
    overload.connections = 1
    assert overload.admit_connection()
    overload.connections = 2
    assert not overload.admit_connection()
    assert overload.refused["connections"] == 1
