"""Queues and their weights: parsing, strict order, and dealing out hands."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model.priority import HANDFULS, by_priority, parse_queues, shares


@pytest.mark.parametrize(
    ("given_", "queues"),
    [
        ("critical=6,default=1", {"critical": 6, "default": 1}),
        (" critical = 6 , low ", {"critical": 6, "low": 1}),
        (["a", "b=3"], {"a": 1, "b": 3}),
        ({"a": 2}, {"a": 2}),
        ("default", {"default": 1}),
    ],
)
def test_queues_are_read_from_every_form(given_: Any, queues: dict[str, int]) -> None:
    assert parse_queues(given_) == queues


@pytest.mark.parametrize(
    "given_",
    [
        "",
        ",",
        [],
        {},
        "a=0",
        "a=-1",
        "a=x",
        "=3",
        {"a": 0},
        {"a": True},
        {"a": None},
        {"": 1},
        {"a": 1.5},
        {5: 1},
        [5],
        ["a,b=3"],
        ["a\nb"],
        [" a"],
        {"a ": 1},
        {"a=1": 1},
        "a}:t:b",
        "a=1.5",
    ],
)
def test_wrong_queues_are_refused(given_: Any) -> None:
    with pytest.raises(ConfigError, match=r"^queues"):
        parse_queues(given_)


def test_strict_order_is_by_weight_then_as_given() -> None:
    assert by_priority({"a": 1, "b": 6, "c": 3, "d": 6}) == ["b", "d", "c", "a"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 100), min_size=1, max_size=6),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_hands_are_dealt_out_completely_and_only_to_known_queues(
    queues: dict[str, int], hands: int, rng: random.Random
) -> None:
    dealt = shares(queues, hands, rng)
    assert sum(number for _, number in dealt) == hands
    assert all(number > 0 for _, number in dealt)
    assert {queue for queue, _ in dealt} <= queues.keys()
    assert len({queue for queue, _ in dealt}) == len(dealt) <= HANDFULS


def test_hands_are_dealt_out_in_proportion() -> None:
    totals = {"a": 0, "b": 0, "c": 0}
    rng = random.Random(3)
    for _ in range(200):
        for queue, number in shares({"a": 6, "b": 3, "c": 1}, 50, rng):
            totals[queue] += number
    assert totals["a"] == pytest.approx(6000, rel=0.1)
    assert totals["b"] == pytest.approx(3000, rel=0.1)
    assert totals["c"] == pytest.approx(1000, rel=0.2)
