"""The bounds of the soak: a slow leak is found, and what only goes up and down is not taken for one."""

from __future__ import annotations

import random

import pytest

from tests.crash.growth import Sample, growths

WORKERS = 3


def _samples(**leaks: float) -> list[Sample]:
    """Half an hour, a sample every 15 s, noise as after a fault; `leaks` is what is added from begin to end."""
    rng, samples = random.Random(5), []
    for number in range(120):
        part = number / 119
        sizes = {"memory": 150_000, "descriptors": 60, "threads": 12, "connections": 18, "keys": 90}
        noise = {"memory": 1500, "descriptors": 6, "threads": 0, "connections": 6, "keys": 4}
        counts = {
            name: round(sizes[name] + leaks.get(name, 0) * part + rng.randint(-noise[name], noise[name]))
            for name in sizes
        }
        samples.append(Sample(at=number * 15.0, **counts))
    return samples


def test_what_goes_up_and_down_is_no_growth() -> None:
    assert [one.name for one in growths(_samples(), WORKERS) if one.is_too_much] == []


@pytest.mark.parametrize(
    ("name", "leak"), [("memory", 10_000), ("descriptors", 8), ("threads", 5), ("connections", 8), ("keys", 12)]
)
def test_a_slow_leak_is_growth(name: str, leak: int) -> None:
    found = growths(_samples(**{name: leak}), WORKERS)

    assert [one.name for one in found if one.is_too_much] == [name]


def test_steps_are_growth() -> None:
    """As when each fault of one kind leaves a connection open: the median of all slopes sees it."""
    samples = [one._replace(connections=18 + 2 * (number // 10)) for number, one in enumerate(_samples())]

    assert "connections" in [one.name for one in growths(samples, WORKERS) if one.is_too_much]
