"""When a gateway counts as healthy and as ready: each sign alone, at its bound and just beyond it."""

from __future__ import annotations

import re

import pytest

from veredus.gateway.health import BEHIND, STUCK_AFTER, GatewaySigns, not_ready, problems

WELL = GatewaySigns(
    hints_arrive=True,
    hints_missing_for=0.0,
    log_unreadable_for=0.0,
    beat_age=STUCK_AFTER,
    loop_late_by=BEHIND,
    draining=False,
    listening=True,
)


def test_all_is_well() -> None:
    assert problems(WELL) == not_ready(WELL) == []


@pytest.mark.parametrize(
    ("signs", "told"),
    [
        (WELL._replace(hints_arrive=False, hints_missing_for=11.0), "no hints: .* arrived for 11 s"),
        (WELL._replace(log_unreadable_for=12.0), "the logs have been unreadable for 12 s"),
        (WELL._replace(beat_age=13.0), "no heartbeat of this node has reached the store for 13 s"),
        (WELL._replace(loop_late_by=2.5), r"the event loop is 2\.5 s late"),
    ],
)
def test_each_problem_is_told_and_makes_the_node_not_ready(signs: GatewaySigns, told: str) -> None:
    (found,) = problems(signs)
    assert not_ready(signs) == [found]
    assert re.match(told, found)


@pytest.mark.parametrize(
    ("signs", "told"),
    [
        (WELL._replace(draining=True), ["draining: clients are being moved to other gateways"]),
        (WELL._replace(listening=False), ["not listening"]),
        (WELL._replace(hints_arrive=False, hints_missing_for=STUCK_AFTER), ["no hints arrive"]),
        (WELL._replace(log_unreadable_for=STUCK_AFTER), ["the logs cannot be read"]),
    ],
)
def test_what_only_keeps_new_clients_away(signs: GatewaySigns, told: list[str]) -> None:
    assert problems(signs) == []
    assert not_ready(signs) == told
