"""Who is dead and who only looks so: workers that were subscribed, and are no longer."""

from __future__ import annotations

import pytest

from veredus.model.absences import INTERVAL, PATIENCE, SLACK, Absences, Sign

CALM = 12.0
OTHERS = ("b", "c", "d", "e")


class Fleet:
    """Looks at workers that live and die by hand; `me` is the one that looks."""

    def __init__(self, *others: str) -> None:
        self.absences = Absences("me", calm=CALM, idle=8.0)
        self.signs = {name: Sign(100, 2) for name in ("me", *others)}
        self.at = 1000.0
        self.look()

    def look(self, after: float = INTERVAL, *, was_cut_off: bool = False) -> list[str]:
        self.at += after
        return self.absences.look(round(self.at * 1000), self.at, self.signs, was_cut_off=was_cut_off)

    def dead_within(self, seconds: float) -> list[str]:
        """All that are found dead in looks of so many seconds."""
        found, ends_at = list[str](), self.at + seconds
        while self.at < ends_at:
            found += self.look()
        return found

    def close(self, *names: str) -> None:
        for name in names:
            self.signs[name] = Sign(self.signs[name].life, 0)

    def beat(self, name: str) -> None:
        self.signs[name] = Sign(self.signs[name].life + 1, self.signs[name].subscribers)

    def open(self, *names: str) -> None:
        for name in names:
            self.signs[name] = Sign(self.signs[name].life, 2)


@pytest.mark.parametrize("others", [("b",), OTHERS], ids=["the only other", "of five"])
def test_a_worker_that_is_missing_for_two_seconds_without_a_beat_is_dead(others: tuple[str, ...]) -> None:
    fleet = Fleet(*others)
    fleet.close("b")
    assert fleet.dead_within(PATIENCE) == []
    assert fleet.look() == ["b"]
    assert fleet.look() == ["b"], "until its tasks are recovered"
    fleet.absences.is_over("b")
    assert fleet.dead_within(2 * CALM) == []


def test_the_next_look_is_when_the_verdict_is_due_and_seldom_where_nobody_else_is() -> None:
    alone = Fleet()
    assert alone.absences.pause == 8.0
    fleet = Fleet("b")
    assert fleet.absences.pause == INTERVAL
    fleet.close("b")
    fleet.look()
    fleet.look(PATIENCE - 0.2)
    assert fleet.absences.pause == pytest.approx(0.2)


@pytest.mark.parametrize("sign", [Fleet.beat, Fleet.open], ids=["a beat", "a connection"])
def test_any_sign_of_life_starts_the_two_seconds_again(sign: object) -> None:
    fleet = Fleet(*OTHERS)
    for _ in range(5):
        fleet.close("b")
        assert fleet.dead_within(PATIENCE - INTERVAL) == []
        sign(fleet, "b")  # type: ignore[operator]
        fleet.look()


def test_one_that_was_never_seen_or_said_goodbye_is_not_missing() -> None:
    fleet = Fleet("b", "c")
    fleet.signs["old version"] = Sign(100, 0)
    del fleet.signs["c"]
    assert fleet.dead_within(2 * PATIENCE) == []


@pytest.mark.parametrize("gone", [("b", "c"), OTHERS])
def test_when_many_are_missing_at_once_nobody_is_dead(gone: tuple[str, ...]) -> None:
    fleet = Fleet(*OTHERS)
    fleet.close(*gone)
    assert fleet.dead_within(CALM + 2 * PATIENCE) == [], "and must be seen again first"
    fleet.open(*gone)
    fleet.look()
    fleet.close("b")
    assert fleet.dead_within(PATIENCE + INTERVAL) == ["b"]


def test_a_few_of_many_are_dead_together() -> None:
    fleet = Fleet(*[f"w{number}" for number in range(11)])
    fleet.close("w0", "w1", "w2")
    assert set(fleet.dead_within(PATIENCE + INTERVAL)) == {"w0", "w1", "w2"}


def _restarted(fleet: Fleet) -> None:
    fleet.look(was_cut_off=True)


def _failed_over(fleet: Fleet) -> None:
    """This node does not count anybody, not even the one that looks."""
    fleet.close("me")
    fleet.look()
    fleet.open("me")


def _stood_still(fleet: Fleet) -> None:
    fleet.look(INTERVAL + SLACK + 0.1)


def _clock_set_back(fleet: Fleet) -> None:
    fleet.absences.look(round(fleet.at * 1000) - 1, fleet.at, fleet.signs)


def _looked_no_more(fleet: Fleet) -> None:
    """It had no connection itself, so that another worker took over."""
    fleet.absences.look(round(fleet.at * 1000), fleet.at, {})


@pytest.mark.parametrize("disturbance", [_looked_no_more, _restarted, _failed_over, _stood_still, _clock_set_back])
def test_after_a_disturbance_nobody_is_dead_for_a_lease(disturbance: object) -> None:
    fleet = Fleet(*OTHERS)
    disturbance(fleet)  # type: ignore[operator]
    fleet.look()
    fleet.close("b")
    assert fleet.dead_within(CALM - 2 * INTERVAL) == []
    assert set(fleet.dead_within(3 * INTERVAL)) == {"b"}


def test_a_worker_whose_own_record_comes_later_is_not_disturbed_by_that() -> None:
    """On a cluster the index of records is written after the first record."""
    absences = Absences("me", calm=CALM, idle=8.0)
    assert absences.look(1_000_000, 1000.0, {"b": Sign(100, 2)}) == []
    signs = {"me": Sign(100, 2), "b": Sign(100, 2)}
    looks = [absences.look(round(at * 1000), at, signs) for at in (1000.5, 1001.0)]
    signs["b"] = Sign(100, 0)
    looks += [absences.look(round(at * 1000), at, signs) for at in (1001.5, 1002.0, 1002.5, 1003.0, 1003.5)]
    assert looks == [[]] * 6 + [["b"]]


def test_a_worker_that_was_missing_before_a_standstill_may_have_been_alive() -> None:
    fleet = Fleet(*OTHERS)
    fleet.close("b")
    fleet.look()
    assert fleet.look(10.0) == []
    assert fleet.dead_within(2 * CALM) == []
