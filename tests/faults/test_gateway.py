"""Every call, every fault, on the way of clients' requests and of messages to them: what was told is what happened."""

from __future__ import annotations

import pytest

from tests.faults.damage import noted_calls
from tests.faults.gateway.pushes import PUSHES
from tests.faults.gateway.requests import REQUESTS
from tests.faults.playing import play_with_fault, play_without_fault
from tests.faults.scenario import Case, Scenario, cases_of, sample
from tests.faults.workers import WORKERS
from tests.support.faults import FAULTS, STANDSTILLS
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from veredus.gateway import ack_writer, maintenance

SCENARIOS = [*REQUESTS, *PUSHES]
ALL = [case for scenario in SCENARIOS for case in cases_of(scenario)]
NAMED = {
    "cancel-there/outbox-respond/reply-lost",
    "client-says-goodbye/1-outbox-ack/request-lost",
    "client-says-goodbye/2-session-close/request-lost",
    "push-empty-group/3-srem/request-lost",
    "push-group/3-outbox-spread/BUSY",
    "push-many-users/2-outbox-post/BUSY",
    "request-notifies/2-outbox-append/reply-lost",
    "request-twice/outbox-accept-2/OOM",
}
"""Each of these found a defect once."""
CHOSEN = ALL if FULL else sample(ALL, NAMED, most=1)
MET = {site.label for one in (*SCENARIOS, *WORKERS) for site in one.sites}


def test_every_scenario_and_every_fault_is_in_the_sample() -> None:
    chosen = sample(ALL, NAMED, most=1)
    assert {case.scenario.name for case in chosen} == {scenario.name for scenario in SCENARIOS}
    assert {case.fault for case in chosen} == {*FAULTS, *STANDSTILLS}
    assert {case.name for case in chosen} >= NAMED


@pytest.fixture(autouse=True)
def without_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls but those of the scenario."""
    monkeypatch.setattr(maintenance, "BEAT", 3600.0)
    monkeypatch.setattr(maintenance, "SWEEP", 3600.0)
    monkeypatch.setattr(ack_writer, "RETRY_AFTER", 0.1)


@pytest.mark.parametrize("scenario", [pytest.param(one, id=one.name) for one in SCENARIOS])
async def test_a_scenario_makes_the_calls_that_are_listed(valkey_server: RealServer, scenario: Scenario) -> None:
    with noted_calls(valkey_server) as calls:
        await play_without_fault(scenario, valkey_server, MET)
    assert not calls.written_by_failures()


@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in CHOSEN])
async def test_a_fault(valkey_server: RealServer, case: Case) -> None:
    await play_with_fault(case, valkey_server)
