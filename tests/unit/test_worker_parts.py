"""Small parts of the worker: the mux, complaints, and retry delays that misbehave."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Hashable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, forever, until
from veredus import App, ConfigError
from veredus.errors import ConnectionLost, NotReady, ServerFull, StoreError
from veredus.handlers.mux import Mux
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.settlement import Complete, Requeue
from veredus.process import outage_log
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.process.supervisor import SupervisedProcess, failures_in_a_row, pause_before_next
from veredus.worker.role import Role, Roster
from veredus.worker.roles.processor import SCANS_BETWEEN, Processor
from veredus.worker.roles.syncer import LARGE, UnwrittenSettlement
from veredus.worker.settlements import retry_delay_ms
from veredus.worker.supervisor import WorkerSupervisor

MESSAGE = TaskMessage(type="t", id="1", queue="q", retry=5, retried=2)


@pytest.mark.parametrize(
    ("returned", "milliseconds"),
    [(1.5, 1500), (0, 0), (-5, 0), (timedelta(seconds=2), 2000), (0.0001, 1), (0.1, 100), (1.1, 1100)],
)
def test_a_delay_is_rounded_up_to_milliseconds(returned: Any, milliseconds: int) -> None:
    assert retry_delay_ms(lambda *args: returned, MESSAGE, ValueError(), Job(MESSAGE)) == milliseconds


@pytest.mark.parametrize("returned", [None, "soon", float("nan"), float("inf"), object()])
def test_a_delay_that_is_nonsense_gets_the_default(returned: Any) -> None:
    assert 31_000 <= retry_delay_ms(lambda *args: returned, MESSAGE, ValueError(), Job(MESSAGE)) <= 118_000


def test_the_mux_finds_by_name_then_by_the_longest_prefix() -> None:
    app = App()
    for pattern in ("a:*", "a:b:*", "a:b:c"):
        app.handler(pattern)(_handler)
    mux = Mux(app.tasks, app.patterns, ())
    found = {name: mux.find(name) for name in ("a:b:c", "a:b:d", "a:x", "a:", "b")}
    assert {name: task and task.name for name, task in found.items()} == {
        "a:b:c": "a:b:c",
        "a:b:d": "a:b:*",
        "a:x": "a:*",
        "a:": "a:*",
        "b": None,
    }


async def _handler(job: Job) -> None: ...


def test_a_middleware_must_be_callable() -> None:
    with pytest.raises(ConfigError, match="middleware"):
        Mux({}, {}, [5])  # type: ignore[list-item]


def test_a_repeated_complaint_is_counted_not_repeated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            told.log("a", "trouble")
        told.log("b", "other trouble")
        now += 3.1
        told.log("a", "trouble")
    assert [record.getMessage() for record in caplog.records] == [
        "trouble",
        "other trouble",
        "trouble (99 more like this)",
    ]


def test_a_complaint_that_never_pauses_is_told_again_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            told.log("a", "trouble")
            now += 1.0
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["trouble", "trouble (2 more like this)", "trouble (5 more like this)"], "less and less often"


def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    with caplog.at_level(logging.WARNING):
        told.recovered()
        for _ in range(10):
            told.error("x", "cannot y", ConnectionLost("gone"))
        now += 4
        told.recovered()
        now += outage_log.QUIET
        told.recovered()
        told.recovered()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "not available" in caplog.records[0].getMessage()
    assert "available again after 4.0 s" in caplog.records[1].getMessage()


def test_a_server_that_flickers_while_it_comes_back_is_one_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped answers what it had read, then finds the connections that were given up."""
    now = 1000.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    for _ in range(5):
        told.error("x", "cannot y", ConnectionLost("gone"))
        now += 0.9
        told.recovered("x")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    now += outage_log.QUIET
    told.recovered("other")
    lines = [record.getMessage() for record in caplog.records[1:]]
    assert lines == ["Redis is available again after 4.5 s"], "the time of the first answer, not of the calm"


def test_a_call_from_before_its_end_that_runs_out_of_time_is_no_new_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    told.error("x", "cannot y", ConnectionLost("no answer"))
    now += 3.0
    told.recovered("x")
    told.error("heartbeat", "cannot beat", ConnectionLost("cannot connect: no answer in time"))
    now += 0.5
    told.recovered("heartbeat")
    now += outage_log.QUIET
    told.recovered("x")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "again after 3.5 s" in caplog.text


@pytest.mark.parametrize("exc", [NotReady("MISCONF"), ServerFull("OOM")])
def test_a_refusal_ends_when_those_who_were_refused_succeed(
    exc: StoreError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers others all the same, and each answer would else be told as its end."""
    now = [1000.0]
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now[0])
    told = OutageLog()
    for _ in range(10):
        told.error(("settle", "a"), "cannot settle", exc)
        told.recovered(("dequeue", "a"))
        now[0] += outage_log.QUIET
        told.recovered(("dequeue", "a"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    told.recovered(("settle", "a"))
    now[0] += outage_log.QUIET
    told.recovered(("dequeue", "a"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize("subject", ["heartbeat", "subscribe", ("watch", "a")])
def test_an_answer_on_another_connection_does_not_end_the_outage_of_ones_own(
    subject: Hashable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now)
    told = OutageLog()
    for _ in range(3):
        told.error(subject, "failed", ConnectionLost("gone"))
        told.recovered(("dequeue", "a"))
    now += outage_log.QUIET
    told.recovered(("dequeue", "a"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    told.recovered(subject)
    now += outage_log.QUIET
    told.recovered(("dequeue", "a"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_of_several_servers_one_that_is_missing_is_told_once_while_the_others_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("veredus.process.outage_log.time.monotonic", lambda: now[0])
    told = OutageLog(many_servers=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            told.outage(ConnectionLost("gone"), ("dequeue", "a"))
            told.outage(ConnectionLost("gone"), ("sweep", "a"))
            told.recovered(("dequeue", "b"))
            now[0] += 1
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        told.recovered(("dequeue", "a"))
        assert len(caplog.records) == 1, "the sweep has not found it again"
        now[0] += outage_log.FORGET
        told.recovered(("dequeue", "b"))
        now[0] += outage_log.QUIET
        told.recovered(("dequeue", "b"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_only_children_that_die_at_once_wait_for_their_replacement_and_each_for_itself() -> None:
    assert [pause_before_next(n) for n in range(4)] == [0.0, 0.2, 0.4, 0.8]
    assert pause_before_next(50) == 10.0
    assert failures_in_a_row(3, lived=6.0) == 0
    assert failures_in_a_row(3, lived=0.1) == 4


@pytest.mark.parametrize(("when", "adds"), [("before", 1), ("while its tasks are given back", 0), ("never", 0)])
def test_a_killed_child_spoils_only_a_stop_that_was_under_way(
    when: str, adds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = WorkerSupervisor(App().worker(processes=2))
    supervisor._stopping = when == "before"

    def give_back(child: SupervisedProcess, how: str) -> None:
        supervisor._stopping = when != "never"

    monkeypatch.setattr(supervisor, "_give_back", give_back)
    assert supervisor.ended(SupervisedProcess(0, "w"), -signal.SIGKILL) == adds


class _Shaky(Role):
    """Its step raises what nobody expects, then works."""

    name = "shaky"

    def __init__(self) -> None:
        super().__init__(0.001, OutageLog())
        self.steps = 0

    async def step(self) -> None:
        self.steps += 1
        if self.steps == 1:
            raise ZeroDivisionError


async def test_a_role_whose_step_fails_in_an_unexpected_way_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    role = _Shaky()
    restarts = Restarts()
    roster = Roster([role], restarts)
    roster.start()
    await until(lambda: role.steps > 2)
    await roster.stop_all()
    assert restarts.counts == {"shaky": 1}
    assert "shaky has ended" in caplog.text
    assert "ZeroDivisionError" in caplog.text


class _Stuck(Role):
    name = "stuck"

    async def run(self) -> None:
        await forever()


async def test_a_role_that_does_not_hear_a_stop_is_cancelled() -> None:
    role = _Stuck(1.0, OutageLog())
    roster = Roster([role], Restarts())
    roster.start()
    await asyncio.wait_for(roster.stop(role, patience=0.01), PATIENCE)


@pytest.mark.parametrize(
    ("result", "is_large"), [(None, False), (b"", False), (bytes(LARGE), False), (bytes(LARGE + 1), True)]
)
def test_a_large_result_is_written_alone(result: bytes | None, is_large: bool) -> None:
    done = Complete("1", "w:1", "", b"message", 60, result)
    assert UnwrittenSettlement("q", (done, None)).is_large is is_large
    assert not UnwrittenSettlement("q", (Requeue("1", "w:1"), None)).is_large


def test_one_scan_in_so_many_looks_at_the_front_of_the_queue() -> None:
    fronts: list[bool] = []
    scan = SimpleNamespace(arrivals=lambda *, at_front: fronts.append(at_front))
    role = SimpleNamespace(_arrival_timers={}, _arrival_scans=0, _scans={"q": scan}, _wake=asyncio.Event())
    for _ in range(2 * SCANS_BETWEEN):
        role._arrival_timers["q"] = None
        Processor._scan_arrivals(role, "q")  # type: ignore[arg-type]
    assert [number for number, at_front in enumerate(fronts, 1) if at_front] == [SCANS_BETWEEN, 2 * SCANS_BETWEEN]
    assert role._wake.is_set()
