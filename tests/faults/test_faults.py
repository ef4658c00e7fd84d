"""Every call, every fault: the layout stays whole, nothing is lost, and each task runs and counts as promised."""

from __future__ import annotations

import pytest

from tests.faults.durable import DURABLE
from tests.faults.playing import play_with_fault, play_without_fault
from tests.faults.producers import PRODUCERS
from tests.faults.scenario import Case, Scenario, cases_of, sample
from tests.faults.tools import TOOLS
from tests.faults.workers import WORKERS
from tests.support.faults import FAULTS, PAIRS
from tests.support.servers import RealServer
from tests.support.sizes import FULL

SCENARIOS = [*PRODUCERS, *WORKERS, *TOOLS, *DURABLE]
MET = {site.label for scenario in SCENARIOS for site in scenario.sites}
"""Calls at which faults happen, in this scenario or in another."""
ALL = [case for scenario in SCENARIOS for case in cases_of(scenario)]
NAMED = {
    "cancel-running/hget/request-lost",
    "inspector-delete-queue/5-setnx/reply-lost",
    "inspector-delete-queue/6-inspect-stats/max-clients",
    "progress/result-progress/request-lost",
    "recover-settle/task-retry/request-lost",
    "recover/lease-recover/reply-lost",
    "schedule-history/cron-record/request-lost",
    "schedule/11-cron-hide/request-lost",
    "worker/hgetall/LOADING",
    "worker/setname/max-clients",
    "worker/info/LOADING",
}
"""Each of these found a defect once."""
CHOSEN = ALL if FULL else sample(ALL, NAMED)


def test_every_scenario_and_every_fault_is_in_the_sample() -> None:
    chosen = sample(ALL, NAMED)
    assert {case.scenario.name for case in chosen} == {scenario.name for scenario in SCENARIOS}
    assert {case.fault for case in chosen} == {*FAULTS, *PAIRS}
    assert {case.name for case in chosen} >= NAMED


@pytest.mark.parametrize("scenario", [pytest.param(one, id=one.name) for one in SCENARIOS])
async def test_a_scenario_makes_the_calls_that_are_listed(valkey_server: RealServer, scenario: Scenario) -> None:
    await play_without_fault(scenario, valkey_server, MET)


@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in CHOSEN])
async def test_a_fault(valkey_server: RealServer, case: Case) -> None:
    await play_with_fault(case, valkey_server)
