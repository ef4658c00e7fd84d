"""The books of the storm beside live Go (`tests/interop/live`): they notice what must not be, and excuse only kills."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.live.ledger import SLACK, Ledger, Sent, Verb

GO, OURS = 10, 20


def fact(what: str, at: float, *numbers: int, pid: int = GO, failed: str = "", task_id: str = "") -> dict[str, Any]:
    payload = ",".join(json.dumps({"n": number}) for number in numbers)
    return {
        "what": what, "id": task_id or f"t{numbers[0]}", "payload": payload, "failed": failed, "pid": pid, "at": at,
    }  # fmt: skip


def books(
    facts: list[dict[str, Any]],
    *sent: Sent,
    verbs: tuple[Verb, ...] = (),
    kills: dict[int, float] | None = None,
) -> Ledger:
    ledger = Ledger(sent={one.id: one for one in sent}, verbs=list(verbs), kills=kills or {})
    ledger.read(facts)
    return ledger


def reasons(ledger: Ledger) -> list[str]:
    return [why for _, why in ledger.repeats()]


ONE = Sent("t1", 1)
RUN = [fact("began", 1, 1), fact("ran", 2, 1)]
AGAIN = [fact("began", 30, 1, pid=OURS), fact("ran", 31, 1, pid=OURS)]


def test_a_task_that_ran_once_is_fine() -> None:
    ledger = books(RUN, ONE)
    assert (ledger.lost(), reasons(ledger), ledger.unended()) == ([], [], [])


@pytest.mark.parametrize("facts", [[], RUN[:1], [RUN[0], fact("ran", 2, 1, failed="told to fail")]])
def test_a_task_that_never_ended_well_is_lost(facts: list[dict[str, Any]]) -> None:
    assert books(facts, ONE).lost() == [ONE]


def test_a_task_that_was_deleted_or_failed_as_asked_is_not_lost() -> None:
    assert books([], ONE, verbs=(Verb("delete", "t1", 1, 2),)).lost() == []
    failed = [RUN[0], fact("ran", 2, 1, failed="told to skip")]
    assert books(failed, Sent("t1", 1, behave="skip")).lost() == []
    assert books([], ONE, verbs=(Verb("archive", "t1", 1, 2),)).lost() == [ONE]


@pytest.mark.parametrize(
    ("first", "kill", "why"),
    [
        (RUN, {}, ""),
        (RUN, {OURS: 2.1}, ""),
        (RUN, {GO: 2.1}, "kill"),
        (RUN, {GO: 2 + SLACK + 1}, ""),
        (RUN[:1], {GO: 20.0}, "kill"),
        (RUN[:1], {GO: 40.0}, ""),
        (RUN[:1], {}, ""),
    ],
)
def test_only_a_kill_of_its_process_excuses_a_second_run(
    first: list[dict[str, Any]], kill: dict[int, float], why: str
) -> None:
    assert reasons(books([*first, *AGAIN], ONE, kills=kill)) == [why]


def test_a_failure_and_a_run_by_hand_are_followed_by_another_run() -> None:
    failed = [RUN[0], fact("ran", 2, 1, failed="told to fail")]
    assert reasons(books([*failed, *AGAIN], ONE)) == []
    assert reasons(books([*RUN, *AGAIN], ONE, verbs=(Verb("run", "t1", 5, 6),))) == ["run"]
    overlapping = [RUN[0], AGAIN[0], fact("ran", 35, 1, failed="told to fail")]
    assert reasons(books(overlapping, ONE)) == [""], "both at once"
    in_one_process = [RUN[0], fact("began", 1.5, 1), fact("ran", 2, 1, failed="told to fail"), fact("ran", 3, 1)]
    assert reasons(books(in_one_process, ONE)) == [""], "both at once"


def test_a_run_after_a_deletion_or_in_the_archive_is_noticed() -> None:
    assert len(books(AGAIN, ONE, verbs=(Verb("delete", "t1", 1, 2),)).run_all_the_same()) == 1
    archived = Verb("archive", "t1", 1, 2)
    assert len(books(AGAIN, ONE, verbs=(archived,)).run_all_the_same()) == 1
    assert books(AGAIN, ONE, verbs=(archived, Verb("run", "t1", 3, 4))).run_all_the_same() == []


def test_a_member_of_a_group_runs_in_one_task() -> None:
    members = (Sent("t1", 1, group="g"), Sent("t2", 2, group="g"))
    joined = [fact("began", 3, 1, 2, task_id="a"), fact("ran", 4, 1, 2, task_id="a")]
    assert books(joined, *members).lost() == []
    assert books(joined, *members, Sent("t3", 3, group="g")).lost() == [Sent("t3", 3, group="g")]
    twice = [*joined, fact("began", 90, 2, task_id="b"), fact("ran", 91, 2, task_id="b")]
    assert reasons(books(twice, *members)) == [""]
    made = fact("aggregated", 2.0, 1, 2, pid=OURS)
    assert reasons(books([made, *twice], *members, kills={OURS: 2.5})) == ["kill"]
    assert reasons(books([made, *twice], *members, kills={OURS: 60.0})) == [""]


def test_an_order_that_is_not_kept_is_noticed() -> None:
    lane = (Sent("t1", 1, order="q k"), Sent("t2", 2, order="q k"))
    after = [fact("began", 3, 2), fact("ran", 4, 2)]
    assert books([*RUN, *after], *lane).out_of_order() == []
    early = [fact("began", 1.5, 2, pid=OURS), fact("ran", 4, 2, pid=OURS)]
    assert len(books([*RUN, *early], *lane).out_of_order()) == 1


def test_a_handler_that_nobody_killed_and_that_never_ended_is_noticed() -> None:
    assert len(books(RUN[:1], ONE).unended()) == 1
    assert books(RUN[:1], ONE, kills={GO: 5}).unended() == []
