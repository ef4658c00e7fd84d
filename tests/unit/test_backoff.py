"""Pauses between tries: each twice the one before, up to the longest, and spread."""

from __future__ import annotations

import random

import pytest

from veredus.model.backoff import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    backoff = Backoff(0.05, 0.5)

    assert [backoff.take() for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_next_pause_is_known_before_it_is_made() -> None:
    backoff = Backoff(0.1, 2.0)
    assert backoff.next == 0.1
    backoff.take()
    assert backoff.next == 0.2


def test_callers_are_spread_between_half_a_pause_and_one_and_a_half() -> None:
    pauses = [Backoff(1.0).take() for _ in range(300)]

    assert 0.5 <= min(pauses) < 0.75
    assert 1.25 < max(pauses) <= 1.5
