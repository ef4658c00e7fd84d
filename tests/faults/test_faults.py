"""Every call, every fault: the layout stays whole, nothing is lost, and each task runs and counts as promised."""

from __future__ import annotations

import pytest

from tests.faults.damage import noted_calls
from tests.faults.durable import DURABLE
from tests.faults.gateway.pushes import PUSHES
from tests.faults.gateway.requests import REQUESTS
from tests.faults.playing import play_with_fault, play_without_fault
from tests.faults.producers import PRODUCERS
from tests.faults.scenario import Case, Scenario, cases_of, sample
from tests.faults.seldom import SELDOM
from tests.faults.tools import TOOLS
from tests.faults.workers import WORKERS
from tests.support.faults import FAULTS, PAIRS, every_script
from tests.support.servers import RealServer
from tests.support.sizes import FULL

SCENARIOS = [*PRODUCERS, *WORKERS, *TOOLS, *SELDOM, *DURABLE]
MET = {site.label for scenario in SCENARIOS for site in scenario.sites}
"""Calls at which faults happen, in this scenario or in another."""
ALL = [case for scenario in SCENARIOS for case in cases_of(scenario)]
NAMED = {
    "cancel-running/hget/request-lost",
    "inspector-delete-queue/5-setnx/reply-lost",
    "inspector-delete-queue/6-inspect-stats/max-clients",
    "inspector-pause-schedule/5-lrange/BUSY",
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
    with noted_calls(valkey_server) as calls:
        await play_without_fault(scenario, valkey_server, MET)
    assert not calls.written_by_failures()


@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in CHOSEN])
async def test_a_fault(valkey_server: RealServer, case: Case) -> None:
    await play_with_fault(case, valkey_server)


READS = {
    *("durable-excerpt", "inspect-examine", "inspect-info", "inspect-leases", "inspect-memory"),
    *("keep-survey", "lease-owned", "limit-list", "order-list", "session-show"),
}
ELSEWHERE = {
    "group-archive": "tests/groups/test_failures.py: members that cannot be read",
    "group-retry": "tests/groups/test_failures.py",
    "inspect-stage_copy": "tests/cluster: a task moves between two slots",
    "inspect-release_copy": "tests/cluster",
    "inspect-delete_original": "tests/cluster",
    "keep-mark": "tests/store/test_durable.py: what replicas or the disk confirm",
    "limit-acquire": "tests/limits/test_semaphore.py",
    "node-beat": "tests/gateway/test_outages.py: a gateway says again and again that it lives",
    "node-bury": "tests/gateway/test_maintenance.py",
    "node-leave": "tests/gateway/test_maintenance.py",
    "order-advance_stale_lanes": "tests/order: swept again and again",
    "presence-ask": "tests/cli/test_worker_control.py",
    "presence-judge": "tests/integration/test_liveness.py",
    "result-write": "tests/results/test_progress.py",
    "session-disconnect": "tests/gateway/test_ending.py",
    "session-revoke": "tests/gateway/test_ending.py",
    **dict.fromkeys(
        ("inspect-quarantine", "inspect-regroup", "inspect-rename_damaged", "inspect-repair", "inspect-unlock"),
        "tests/inspector: the doctor repairs what it finds again",
    ),
    **dict.fromkeys(("limit-check", "order-check"), "tests/inspector: the doctor looks, and repairs"),
}
"""Scripts that no scenario calls, and what does."""


def test_every_script_is_met_or_listed() -> None:
    """A new script that changes something needs a scenario."""
    labels = {part for script in every_script() for part in script.name.replace("/", "-").split("+")}
    met = {part for one in (*SCENARIOS, *REQUESTS, *PUSHES) for site in one.sites for part in site.label.split("+")}
    assert labels - met == READS | ELSEWHERE.keys()
