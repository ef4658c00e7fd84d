"""How a scenario is played: without a fault, and with one at one of its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tests.faults.scenario import Case, Expect, Scenario
from tests.faults.stage import Stage, staged
from tests.support.servers import RealServer
from veredus.errors import StoreError


async def play_without_fault(scenario: Scenario, server: RealServer, met: Collection[str]) -> None:
    """It makes the calls that are listed, so every call is met by the cases. All ends as it should."""
    async with staged(server, kind=scenario.stage) as stage:
        await scenario.prepare(stage)
        await scenario.act(stage)
        made = tuple(stage.proxy.calls)
        await scenario.finish(stage)
        await stage.becomes(scenario.after)
        await stage.sound()
        if scenario.in_order:
            assert made == scenario.calls, made
        else:
            assert Counter(made) >= Counter(scenario.calls)
            assert set(made) <= set(met), set(made) - set(met)


async def play_with_fault(case: Case, server: RealServer) -> None:
    scenario, expected = case.scenario, case.expected
    async with staged(server, case.fault.timeout, scenario.stage) as stage:
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
            await stage.proxy.all_executed()
            if expected is Expect.ONCE:
                assert await stage.scene() in (scenario.before, *scenario.between, scenario.after)
                await stage.sound()
                return
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
