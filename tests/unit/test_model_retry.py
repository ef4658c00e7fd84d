"""Retry delays: every form becomes a function; nonsense is refused where it is given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model.retry import as_function, asynq_default, exponential

ERROR = ValueError("x")


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (5, [5, 5, 5]),
        (0, [0, 0, 0]),
        (2.5, [2.5] * 3),
        (timedelta(minutes=1), [60] * 3),
        ([1, 10], [1, 10, 10]),
        ((3,), [3, 3, 3]),
        (lambda retried, error, job: retried * 2, [0, 2, 4]),
    ],
)
def test_every_form_becomes_a_function(given_: Any, expected: list[float]) -> None:
    delay = as_function(given_)
    assert [delay(retried, ERROR, None) for retried in range(3)] == expected


@pytest.mark.parametrize(
    "given_", [-1, "5", b"5", True, [], [1, -1], [1, "x"], [None], None, float("nan"), float("inf"), [1, float("nan")]]
)
def test_nonsense_is_refused(given_: Any) -> None:
    with pytest.raises(ConfigError, match=r"^retry_delay: "):
        as_function(given_)


@given(st.integers(0, 60))
def test_asynqs_own_formula(retried: int) -> None:
    low, high = retried**4 + 15, retried**4 + 15 + 29 * (retried + 1)
    assert low <= asynq_default(retried, ERROR, None) <= high


def test_asynqs_own_formula_goes_to_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda stop: stop - 1)
    assert [asynq_default(retried, ERROR, None) for retried in (0, 1, 3)] == [44, 74, 212]
    monkeypatch.setattr("random.randrange", lambda stop: 0)
    assert [asynq_default(retried, ERROR, None) for retried in (0, 1, 3)] == [15, 16, 96]


@given(st.integers(0, 5000), st.floats(0, 100), st.floats(1, 10), st.floats(0, 1e6), st.floats(0, 1))
def test_exponential_stays_within_its_cap_and_jitter(
    retried: int, base: float, factor: float, cap: float, jitter: float
) -> None:
    wait = exponential(base, factor=factor, cap=cap, jitter=jitter)(retried, ERROR, None)
    assert isinstance(wait, float)
    assert 0 <= wait <= cap * (1 + jitter) + 1e-6


def test_exponential_doubles() -> None:
    delay = exponential(1, jitter=0)
    assert [delay(retried, ERROR, None) for retried in range(5)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("settings", [{"base": -1}, {"cap": -1}, {"factor": 0.5}, {"jitter": 1.5}, {"jitter": -0.1}])
def test_exponential_refuses_nonsense(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        exponential(**settings)
