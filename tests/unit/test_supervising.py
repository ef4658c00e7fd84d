"""What a supervisor concludes from what its children show, and from how they end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from veredus import App, StoreError
from veredus.process.supervisor import EXIT_CONFIG, SupervisedProcess
from veredus.worker import supervisor
from veredus.worker.lease_keeper import KeptLeases
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.supervisor import WorkerSupervisor
from veredus.worker.worker import EXIT_RECYCLE


class _Parent(WorkerSupervisor):
    """It notes whom it would fork; `kept` is what Redis says of a child that stands still."""

    def __init__(self, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(App().worker(processes=2, lease=60.0))
        self.spawned: list[int] = []
        self.kept: KeptLeases | StoreError = KeptLeases()
        self.child = SupervisedProcess(1, "w", pid=pid, started_at=time.monotonic())
        self._children[pid] = self.child
        self._beats["w"] = self.shared = SharedBeat(2)
        monkeypatch.setattr(supervisor, "keep_leases", self._ask)

    async def _ask(self, *_: Any) -> KeptLeases:
        if isinstance(self.kept, StoreError):
            raise self.kept
        return self.kept

    def _spawn(self, child: SupervisedProcess) -> None:
        self.spawned.append(child.index)

    def _give_back(self, child: SupervisedProcess, how: str) -> None: ...

    def look(self, *, moved: float) -> None:
        """Its child last moved so many seconds ago."""
        self.shared.publish(time.monotonic() - moved, [])
        self._check_at = 0.0
        self.check_children()


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Parent]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield _Parent(process.pid, monkeypatch)
        process.kill()


def test_a_child_that_takes_no_more_tasks_is_replaced_once(parent: _Parent) -> None:
    parent.look(moved=0.0)
    assert parent.spawned == []
    parent.shared.drain()
    parent.look(moved=0.0)
    parent.look(moved=0.0)
    assert parent.ended(parent.child, EXIT_RECYCLE) == 0
    assert parent.spawned == [1]


def test_nobody_is_replaced_while_all_stop(parent: _Parent) -> None:
    parent._stopping = True
    parent.shared.drain()
    parent.look(moved=0.0)
    assert parent.ended(parent.child, EXIT_RECYCLE) == 0
    assert parent.spawned == []


def test_a_child_that_cannot_work_with_its_settings_is_not_replaced(parent: _Parent) -> None:
    assert parent.ended(parent.child, EXIT_CONFIG) == EXIT_CONFIG
    assert (parent.spawned, parent._due) == ([], [])


def test_a_child_that_stands_still_is_told_of_once_and_again_when_it_moves(
    parent: _Parent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "veredus.supervisor")
    parent.kept = KeptLeases([f"{n} (t)" for n in range(7)], time.monotonic() + 100)
    parent.look(moved=29.0)
    assert caplog.messages == []
    parent.look(moved=31.0)
    parent.look(moved=32.0)
    assert len(caplog.messages) == 1
    assert "the leases of its 7 tasks until their deadlines: 0 (t), 1 (t), 2 (t), 3 (t), 4 (t)" in caplog.messages[0]
    parent.look(moved=0.0)
    parent.look(moved=0.0)
    assert caplog.messages[1:] == [f"worker process {parent.child.pid} runs again"]
    assert parent._frozen == {}


def test_a_child_that_stands_still_with_nothing_in_hand_is_left_alone(parent: _Parent) -> None:
    for _ in range(2):
        parent.look(moved=1000.0)
    assert parent._frozen == {}
    os.kill(parent.child.pid, 0)


def test_the_last_deadline_counts_also_when_that_task_is_not_seen_any_more(parent: _Parent) -> None:
    latest = time.monotonic() + 100
    parent.kept = KeptLeases(["a (t)", "b (t)"], latest)
    parent.look(moved=31.0)
    parent.kept = KeptLeases(["a (t)"], latest - 99.9)
    parent.look(moved=32.0)
    assert parent._frozen == {"w": latest}


def test_a_child_whose_leases_cannot_be_renewed_is_not_killed_for_it(
    parent: _Parent, caplog: pytest.LogCaptureFixture
) -> None:
    parent.kept = StoreError("away")
    for _ in range(2):
        parent.look(moved=31.0)
    assert (
        caplog.messages == [f"worker process {parent.child.pid} is frozen, and its leases cannot be renewed: away"] * 2
    )
    os.kill(parent.child.pid, 0)


@pytest.mark.parametrize(("code", "adds"), [(-signal.SIGTERM, 0), (-signal.SIGKILL, 1), (1, 1), (0, 0)])
def test_a_stop_that_a_child_did_not_survive_in_order_is_not_a_good_one(parent: _Parent, code: int, adds: int) -> None:
    parent._stopping = True
    assert parent.ended(parent.child, code) == adds
    assert (parent.spawned, parent._due) == ([], [])
