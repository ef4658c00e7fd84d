"""Every call, every fault: the layout stays whole, nothing is lost, and each task runs and counts as promised."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.producers import PRODUCERS
from tests.faults.scenario import Case, Expect, Scenario, cases_of, sample
from tests.faults.stage import Stage, staged
from tests.faults.tools import TOOLS
from tests.faults.workers import WORKERS
from tests.support.faults import FAULTS, PAIRS
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from veredus.errors import StoreError

SCENARIOS = [*PRODUCERS, *WORKERS, *TOOLS]
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
    """So every call is met below. Without a fault, all ends as it should."""
    async with staged(valkey_server) as stage:
        await scenario.prepare(stage)
        await scenario.act(stage)
        made = tuple(stage.proxy.calls)
        await scenario.finish(stage)
        await stage.becomes(scenario.after)
        await stage.sound()
        if scenario.in_order:
            assert made == scenario.calls
        else:
            assert Counter(made) >= Counter(scenario.calls)
            assert set(made) <= MET


@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in CHOSEN])
async def test_a_fault(valkey_server: RealServer, case: Case) -> None:
    scenario, expected = case.scenario, case.expected
    async with staged(valkey_server, case.fault.timeout) as stage:
        await scenario.prepare(stage)
        stage.proxy.meanwhile = lambda: scenario.meanwhile(stage)
        stage.proxy.let(case.fault, scenario.aim(case.site, stage))
        told = await _told(scenario, stage)
        assert stage.proxy.happened, f"no {case.site} came: {stage.proxy.calls}"
        if expected is Expect.DONE:
            assert told is None
        elif expected is Expect.EITHER and told is None:
            pass
        else:
            assert told is not None, f"nobody was told: {expected.value}"
            await _tell_apart(scenario, stage, expected)
        await scenario.finish(stage)
        await stage.becomes(scenario.after)
        await stage.sound()


async def _told(scenario: Scenario, stage: Stage) -> StoreError | None:
    try:
        await scenario.act(stage)
    except StoreError as exc:
        return exc
    return None


async def _tell_apart(scenario: Scenario, stage: Stage, expected: Expect) -> None:
    """After an error, it has happened or not, nothing in between; asked for again, it happens."""
    scene = await stage.scene()
    if scene == scenario.after and expected in (Expect.UNKNOWN, Expect.PARTLY):
        return
    if scene not in scenario.between:
        assert scene == scenario.before
    stage.proxy.calm()
    await scenario.act(stage)
