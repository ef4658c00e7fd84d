"""The rule itself: at once the first time, then later and later; not over before it has run for a while."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.restarts.support import Broken
from tests.support.waiting import forever, until
from veredus.process import restarts as module
from veredus.process.outage_log import FORGET, OutageLog
from veredus.process.restarts import FIRST_PAUSE, LONGEST_PAUSE, Restarts


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_the_first_restart_is_at_once_and_each_later_one_waits_twice_as_long(clock: _Clock) -> None:
    told: list[str] = []
    restarts = Restarts(told.append)
    pauses = [restarts.ended("a", Broken()) for _ in range(20)]
    assert pauses[:4] == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
    assert restarts.ended("a", Broken(), longest=2.0) == 2.0
    assert restarts.ended("b", Broken()) == 0.0, "each for itself"
    assert restarts.counts == {"a": 21, "b": 1}
    assert told == ["a"] * 21 + ["b"]


def test_it_is_a_problem_until_it_has_run_for_a_while(clock: _Clock) -> None:
    restarts = Restarts(steady=5.0)
    assert restarts.problems() == []
    restarts.ended("a", Broken("why"))
    clock.now += 4.9
    assert restarts.problems() == ["a has ended and is being restarted: Broken: why"]
    assert restarts.ended("a", None) == FIRST_PAUSE, "it had not been back"
    clock.now += 5.0
    assert restarts.problems() == ["a has ended and is being restarted: it returned"], "counted from the restart on"
    clock.now += 0.2
    assert restarts.problems() == []
    assert restarts.ended("a", Broken()) == 0.0, "it had been back"


@pytest.mark.parametrize("error", [Broken, asyncio.CancelledError, GeneratorExit, None])
async def test_whatever_ends_it_it_runs_again(
    error: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs > 2:
            await forever()
        if error is not None:
            raise error("why")

    restarts = Restarts()
    task = asyncio.create_task(restarts.keep("it", run))
    await until(lambda: runs == 3)
    task.cancel()
    assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert (runs, restarts.counts) == (3, {"it": 2}), "cancelled from outside, it does not come back"
    lines = [record for record in caplog.records if record.getMessage().startswith("it has ended")]
    assert len(lines) == 2
    assert all(record.levelno == logging.ERROR for record in lines)
    if error is not None:
        assert all(record.exc_info and record.exc_info[0] is error for record in lines)


async def test_what_is_over_is_not_started_again() -> None:
    over = asyncio.Event()

    async def run() -> None:
        over.set()
        raise Broken

    restarts = Restarts()
    await restarts.keep("it", run, is_over=over.is_set)
    assert restarts.counts == {"it": 1}


def test_complaints_are_shared_by_threads() -> None:
    """One thread looks through the dictionary of those who miss a server while others change it."""
    outages, failures, ready = OutageLog(many_servers=True), list[BaseException](), threading.Barrier(4)

    def work(number: int) -> None:
        try:
            ready.wait()
            for turn in range(3_000):
                outages.outage(ConnectionError("away"), (number, turn))
                outages.log((number, turn), "x", logging.DEBUG)
                outages.recovered((number, turn))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert outages.count == 12_000
    assert FORGET
