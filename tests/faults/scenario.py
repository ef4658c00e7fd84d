"""A scenario is a value: what is there before, what is done through the proxy, which calls that makes, what must be
seen afterwards, and who answers for a call that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum

from tests.faults.stage import Scene, Stage
from tests.support.faults import FAULTS, NOSCRIPT, PAIRS, Aim, Fault, counted

Step = Callable[[Stage], Awaitable[object]]


NOTHING = Scene()


class Expect(Enum):
    """What may come of a case."""

    DONE = "done as if nothing had happened"
    TOLD = "the caller gets an error, and nothing has happened"
    UNKNOWN = "the caller gets an error, and it is done once or not at all"
    EITHER = "done as if nothing had happened, or the caller gets an error and nothing has happened"
    ONCE = "the caller gets an error, and each part of it is done once or not at all; asked for again, it is done again"
    PARTLY = "the caller gets an error, and a part of it is done; all of each part or nothing"


@dataclass(frozen=True)
class Site:
    """One call of a scenario: the nth with this label."""

    label: str
    nth: int = 1
    position: int = 0

    def __str__(self) -> str:
        if self.position:
            return f"{self.position}-{self.label}"
        return self.label if self.nth == 1 else f"{self.label}-{self.nth}"


Answer = Callable[[Site, Fault], Expect]


async def _nothing(stage: Stage) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    name: str
    calls: tuple[str, ...]
    """The labels of all calls in their order. If several roles make them at once (`in_order` is False): those that are
    met, as often as they stand here."""
    act: Step
    """Done through the proxy. Raises what the caller would get."""
    after: Scene
    """What is seen once it is done."""
    expect: Answer
    prepare: Step = _nothing
    before: Scene = NOTHING
    """What is seen if nothing has happened."""
    between: tuple[Scene, ...] = ()
    """What else may be seen after an error, of what is done in several steps."""
    in_order: bool = True
    only: tuple[str, ...] = ()
    """The labels to aim at; empty for all."""
    when: Callable[[Stage], Awaitable[bool]] | None = None
    """Only calls count for which this is true."""
    meanwhile: Step = _nothing
    """What others do between an answer that is lost and the next try."""
    finish: Step = _nothing
    """Done directly, after the outcome is known and before it is looked at."""
    tries_again: bool = False
    """A call whose answer is lost is made again until it is answered."""
    stage: type[Stage] = Stage
    """Where it plays."""
    more_faults: tuple[Fault, ...] = ()
    """Besides those that all scenarios meet."""

    @property
    def sites(self) -> list[Site]:
        numbered = enumerate(counted(list(self.calls)), 1)
        sites = [Site(label, nth, at if self.in_order else 0) for at, (label, nth) in numbered]
        return [site for site in sites if not self.only or site.label in self.only]

    def aim(self, site: Site, stage: Stage) -> Aim:
        when = self.when
        return Aim(site.label, site.nth, None if when is None else lambda: when(stage))


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    site: Site
    fault: Fault

    @property
    def name(self) -> str:
        return f"{self.scenario.name}/{self.site}/{self.fault.name}"

    @property
    def expected(self) -> Expect:
        return self.scenario.expect(self.site, self.fault)


def cases_of(scenario: Scenario) -> list[Case]:
    """Every fault at every call. Only a script can be unknown to the server; pairs are for those who try again."""
    return [
        Case(scenario, site, fault)
        for site in scenario.sites
        for fault in (*FAULTS, *(PAIRS if scenario.tries_again else ()), *scenario.more_faults)
        if fault is not NOSCRIPT or "-" in site.label
    ]


def sample(cases: list[Case], named: Collection[str] = (), most: int = 3) -> list[Case]:
    """A part in which every scenario is met at up to so many of its calls, each with another fault: the calls that a
    scenario is about stand last. In the whole of it every fault comes up several times. The named ones are in it."""
    by_site: dict[str, dict[Site, list[Case]]] = {}
    for case in cases:
        by_site.setdefault(case.scenario.name, {}).setdefault(case.site, []).append(case)
    chosen, turn = [], 0
    for sites in by_site.values():
        rows = list(sites.values())
        step = max(1, len(rows) // most)
        for row in rows[::-step][:most]:
            chosen.append(row[turn % len(row)])
            turn += 11
    return [case for case in cases if case in chosen or case.name in named]
