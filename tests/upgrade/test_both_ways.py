"""Tasks of one version's producers, run by the other version's workers; each version reads what the other wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.crash.fleet import Process
from tests.support.waiting import pause_sync
from tests.upgrade.crew import NEW, OLD, Crew, Failed, Side

pytestmark = pytest.mark.timeout(240)


class Pair(NamedTuple):
    """A producer of one version, a worker of the other."""

    crew: Crew
    producer: Side
    worker: Process


@pytest.fixture(params=[(OLD, NEW), (NEW, OLD)], ids=["new workers", "old workers"])
def pair(request: pytest.FixtureRequest, crew: Crew) -> Pair:
    producer, worker = request.param
    return Pair(crew, crew.side(producer), crew.worker(worker))


def both(crew: Crew) -> list[Side]:
    return [crew.side(OLD), crew.side(NEW)]


def test_tasks_batches_delays_retries_and_results(pair: Pair) -> None:
    crew, producer, worker = pair
    at_once = producer("enqueue_many", type="job", payloads=[{"n": n} for n in range(50)])
    again = producer("enqueue_many", type="job", payloads=[{"fails": 2}] * 10)
    later = producer("enqueue", type="job", payload={}, delay=1.5)
    asked = [producer("enqueue", type="job", payload={"n": n, "result": True, "fails": n % 2}) for n in range(4)]
    hopeless = producer("enqueue", type="job", payload={"fails": 9}, max_retry=1)
    misfit = producer("enqueue", type="job", payload='{"n":"no number"}', max_retry=0)
    for n, one in enumerate(asked):
        assert producer("result", id=one["id"], queue="default") == {"n": n, "pid": worker.pid}
    with pytest.raises(Failed, match="told to fail") as failed:
        producer("result", id=hopeless["id"], queue="default")
    assert failed.value.name == "TaskFailed"
    with pytest.raises(Failed, match="n"):
        producer("result", id=misfit["id"], queue="default")
    crew.wait(lambda: crew.finishes(later["id"]), "the delayed task")
    crew.wait(lambda: crew.tasks_left() == len(asked) + 2, "the end of all but what is kept")
    assert len(crew.starts(*at_once)) == len(crew.finishes(*at_once)) == 50
    assert (len(crew.starts(*again)), len(crew.finishes(*again))) == (30, 10)
    assert len(crew.starts(hopeless["id"])) == 2
    assert crew.breaches() == []


def test_unique_locks_order_keys_limits_and_groups(pair: Pair) -> None:
    crew, producer, _ = pair
    first = producer("enqueue", type="job", payload={"gate": "lock"}, unique_for=600)
    assert not producer("enqueue", type="job", payload={"gate": "lock"}, unique_for=600)["created"]
    lanes = [
        producer("enqueue_many", type="lane", payloads=[{"n": n, "fails": int(n == 1)}], order_key=key)[0]
        for n in range(5)
        for key in ("a", "b")
    ]
    limited = producer("enqueue_many", type="limited", payloads=[{}] * 12)
    producer("enqueue_many", type="member", payloads=list(range(7)), queue="grouped", group="team1")
    crew.wait(lambda: crew.starts(first["id"]), "the start of the locked task")
    crew.open_gate("lock")
    crew.wait_done()
    again = producer("enqueue", type="job", payload={"gate": "lock"}, unique_for=600)
    assert again["created"], "the lock ended with its task"
    crew.wait_done()
    for lane in (lanes[::2], lanes[1::2]):
        facts = [(fact.id, fact.what) for fact in crew.facts() if fact.id in lane]
        runs = [[(one, "start"), (one, "finish")] for one in lane]
        runs[1] = [(lane[1], "start"), (lane[1], "RuntimeError"), *runs[1]]
        assert facts == [step for run in runs for step in run], "one at a time, in their order, through a retry"
    running = most = 0
    for fact in crew.facts():
        if fact.id in limited:
            running += 1 if fact.what == "start" else -1
            most = max(most, running)
    assert most == 2
    crew.wait(lambda: len(crew.summaries()) == 2, "both summaries")
    assert sorted(n for members in crew.summaries() for n in members) == list(range(7))
    assert crew.breaches() == []


def test_cancelling_and_pausing(pair: Pair) -> None:
    crew, producer, worker = pair
    running = producer("enqueue", type="job", payload={"gate": "never"})
    crew.wait(lambda: crew.starts(running["id"]), "its start")
    producer("cancel", id=running["id"], queue="default")
    with pytest.raises(Failed) as failed:
        producer("result", id=running["id"], queue="default")
    assert failed.value.name == "TaskCancelled"
    assert producer("pause", queue="default")
    pending = [producer("enqueue", type="job")["id"] for _ in range(3)]
    later = producer("enqueue", type="job", delay=3600)
    producer("cancel", id=pending[0], queue="default", then="delete")
    producer("cancel", id=later["id"], queue="default", then="delete")
    pause_sync(1.0, proves="a paused queue hands out nothing")
    assert crew.starts(*pending, later["id"]) == []
    assert producer("resume", queue="default")
    crew.wait(lambda: crew.tasks_left() == 1, "the end of all but the cancelled one")
    assert [fact.id for fact in crew.starts(*pending)] == pending[1:]
    assert worker.exit_code is None
    assert crew.breaches() == []


def in_every_state(crew: Crew, producer: Side, worker: str) -> Callable[[Side], object]:
    """Tasks in every state, some of them put there by a worker; returns how a side sees them."""
    process = crew.worker(worker)
    kept = producer("enqueue", type="job", payload={"result": True})
    archived = producer("enqueue", type="job", payload={"fails": 9}, max_retry=0)
    retried = producer("enqueue", type="stranger", max_retry=9)["id"] if worker == OLD else None
    producer("result", id=kept["id"], queue="default")
    crew.wait(lambda: crew.number_in("archived") == 1, "the archived task")
    if retried:
        crew.wait(lambda: crew.number_in("retry") == 1, "the task of an unknown type")
    producer("enqueue", type="job", payload={"gate": "never"}, unique_for=600)
    crew.wait(lambda: crew.number_in("active") == 1, "the active task")
    producer("pause", queue="default")
    producer("enqueue_many", type="job", payloads=[{}] * 3)
    producer("enqueue", type="job", delay=3600)
    producer("enqueue_many", type="lane", payloads=[{}] * 3, order_key="a", queue="default")
    producer("enqueue_many", type="member", payloads=[1, 2], queue="default", group="unserved")
    assert process.exit_code is None

    def seen(side: Side) -> object:
        states = ("pending", "active", "scheduled", "retry", "archived", "completed")
        return (
            {state: side("tasks", queue="default", state=state) for state in states},
            side("tasks", queue="default", state="aggregating", group="unserved"),
            side("counts", queue="default"),
            {key: side("task", queue="default", id=archived["id"])[key] for key in ("state", "last_error")},
            side("servers"),
        )

    return seen


@pytest.mark.parametrize(("producer", "worker"), [(OLD, NEW), (NEW, OLD)], ids=["new workers", "old workers"])
def test_inspector_and_doctor_of_each_version_read_what_the_other_wrote(crew: Crew, producer: str, worker: str) -> None:
    sides = {OLD: crew.side(OLD), NEW: crew.side(NEW)}
    seen = in_every_state(crew, sides[producer], worker)
    assert seen(sides[OLD]) == seen(sides[NEW])
    assert [side("findings") for side in sides.values()] == [[], []]
    assert crew.breaches() == []


def test_a_traceback_is_not_shown_beside_a_later_error_of_the_previous_version(crew: Crew) -> None:
    """This version stores tracebacks in a field of their own, which the previous one neither reads nor clears."""
    old, new = both(crew)
    task = new("enqueue", type="job", payload={"fails": 10_000}, max_retry=10_000)["id"]
    worker = crew.worker(NEW)
    crew.wait(lambda: "RuntimeError" in new("task", queue="default", id=task)["traceback"], "its traceback")
    assert old("task", queue="default", id=task)["last_error"] == "RuntimeError: told to fail"
    assert crew.stop([worker]) == [0]
    worker = crew.worker(OLD)
    crew.wait(lambda: any(fact.pid == worker.pid for fact in crew.facts("RuntimeError")), "an error of the old one")
    old("pause", queue="default")
    crew.wait(lambda: not crew.number_in("active"), "its settlement")
    assert new("task", queue="default", id=task) == {**old("task", queue="default", id=task), "traceback": ""}
