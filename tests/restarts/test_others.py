"""Schedulers, supervisors and what waits in a producer's process."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.restarts.support import Broken, Failing
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.process.signals import SIGNALS
from veredus.process.supervisor import SupervisedProcess, Supervisor
from veredus.scheduler.entries import Entry
from veredus.scheduler.providers import ProviderReader
from veredus.scheduler.scheduler import Scheduler
from veredus.worker import supervisor
from veredus.worker.shared_beat import Beat
from veredus.worker.supervisor import WorkerSupervisor


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    app = App(valkey_server.url)
    yield app
    await app.close()


async def test_a_scheduler_by_itself_comes_back(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.cron("@daily")
    async def daily() -> None: ...

    failing = Failing(monkeypatch, Scheduler, "step", times=2)
    async with app.scheduler() as service:
        await until(lambda: failing.calls > 2)
        await until(lambda: service.scheduler is not None and service.scheduler.leads)
    assert caplog.text.count("scheduler has ended") == 2


async def test_the_reader_of_a_provider_comes_back(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work() -> None: ...

    app.schedule_provider(lambda: [Entry("@daily", work.call())], interval=0.05)
    failing = Failing(monkeypatch, ProviderReader, "read")
    async with app.scheduler() as service:
        await until(lambda: failing.calls > 1)
        await until(lambda: service.scheduler is not None and service.scheduler.next_tick)
    assert caplog.text.count("reader of provider") == 1


class _Family(Supervisor):
    """Children that end at once; the family ends when all have."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.codes: list[int] = []

    def live(self, child: SupervisedProcess) -> int:
        return 7

    def ended(self, child: SupervisedProcess, code: int) -> int:
        self.codes.append(code)
        return 0

    def patience(self) -> float:
        return 5.0


def test_a_process_that_cannot_be_forked_is_forked_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without memory, or with too many processes, the children that run are not given up."""
    fork, calls = os.fork, 0

    def sometimes() -> int:
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", sometimes)
    children = _Family(2)
    assert children.run() == 0
    assert children.codes == [7, 7]
    assert caplog.text.count("a worker process cannot be started: [Errno 11]") == 2
    assert not set(signal.pthread_sigmask(signal.SIG_BLOCK, [])) & set(SIGNALS)


async def _fail(*_: Any) -> Any:
    raise Broken("why")


def test_a_supervisor_survives_whatever_goes_wrong_while_it_looks_after_a_child(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent, child = WorkerSupervisor(App().worker(processes=2)), SupervisedProcess(0, "w", pid=os.getpid())
    monkeypatch.setattr(supervisor, "give_back", _fail)
    parent._give_back(child, "exit code 1")
    assert "its tasks will be recovered when their leases expire: why" in caplog.text
    monkeypatch.setattr(supervisor, "keep_leases", _fail)
    parent._keep(child, Beat(1.0, {}, False), 60.0)
    assert "its leases cannot be renewed: why" in caplog.text
    assert caplog.text.count("Broken: why") >= 2, "with their tracebacks"
