"""Real partitions: server, workers and producers in network namespaces of their own, between which packets vanish."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.fleet import HERE, QUEUE, RECOVERY, Fleet, Process, say
from tests.crash.networks import BOTH, DIRECTIONS, Network, Node, NoNamespaces
from tests.support.processes import running
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from tests.support.waiting import pause_sync, until_sync

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not FULL, reason="partitions last up to a minute: `make crash` only"),
]
PORT = 6379
SLACK = 15.0
"""Seconds by which this machine may be late."""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        network = Network()
    except NoNamespaces as exc:
        pytest.skip(str(exc))
    try:
        yield network
    finally:
        network.close()
        assert network.left() == []


@pytest.fixture
def home(network: Network) -> Node:
    """Where the server lives."""
    return network.node("server")


@pytest.fixture
def fleet(home: Node, tmp_path: Path) -> Iterator[Fleet]:
    """The test itself talks to the server through a unix socket, which no cut touches."""
    options = ("--port", str(PORT), "--bind", home.address, "--protected-mode", "no", "--appendonly", "yes")
    server = RealServer("valkey", *options, within=home.within)
    fleet = Fleet(server, tmp_path)
    yield fleet
    fleet.close()
    server.close()


def url(home: Node) -> str:
    return f"redis://{home.address}:{PORT}/0"


@pytest.mark.parametrize("seconds", [5, 15, 60])
def test_workers_cut_from_the_server_while_their_handlers_run(
    fleet: Fleet, network: Network, home: Node, seconds: int
) -> None:
    """One worker per direction; a fourth one, which is not cut, takes over what is lost."""
    nodes = {direction: network.node(f"w{i}") for i, direction in enumerate(DIRECTIONS)}
    cut: dict[str, Process] = {}
    for i, (direction, node) in enumerate(nodes.items()):
        queues = f"{QUEUE},canary{i}"
        cut[direction] = fleet.start(url=url(home), within=node.within, queues=queues, concurrency=2, wait=False)
    fleet.wait(lambda: all(worker.is_ready for worker in cut.values()), "all workers")
    held = fleet.enqueue(6, gate="{n}", result=True)
    fleet.wait(lambda: len(fleet.starts()) == 6, "all starts")
    mine = {direction: [f.id for f in fleet.starts() if f.pid == one.pid] for direction, one in cut.items()}
    assert [len(ids) for ids in mine.values()] == [2, 2, 2]
    fleet.start(url=url(home), within=network.node("other").within, concurrency=20)
    for direction, node in nodes.items():
        network.cut(node, direction)
    cut_at, cut_on = time.time(), time.monotonic()
    passing = fleet.enqueue(200, seconds=0.01)
    fleet.wait(lambda: len(fleet.finishes(*passing)) == 200, "the others' tasks, meanwhile", seconds=120)
    fleet.wait(lambda: time.monotonic() - cut_on > seconds - 1, "the end of the cut", seconds=90)
    fleet.open_gate("1")  # their handlers end while they cannot tell anybody; second attempts go on

    def recovered() -> set[str]:
        return {fact.id for fact in fleet.starts(*held) if fact.attempt > 1}

    for node in nodes.values():
        network.heal(node)
    healed_at = time.time()
    canaries = [fleet.enqueue(options={"queue": f"canary{i}"})[0] for i in range(3)]
    fleet.wait(lambda: len(fleet.finishes(*canaries)) == 3, "the first tasks after the cut", seconds=120)
    fleet.wait(lambda: fleet.number_in("completed") == 6 - len(recovered()), "what was not taken over", seconds=60)
    assert {task_id for task_id in held if fleet.field(task_id, "state") == "active"} == recovered(), "fenced off"
    fleet.open_gate("2")
    fleet.wait(lambda: fleet.number_in("completed") == 6, "the end of all tasks", seconds=60)
    fleet.wait(lambda: all(fleet.shown_alive(worker.pid) for worker in cut.values()), "all records")
    for i, direction in enumerate(DIRECTIONS):
        again = [f.at - cut_at for f in fleet.starts(*mine[direction]) if f.attempt > 1]
        back = fleet.finishes(canaries[i])[0].at - healed_at
        say(
            f"cut {seconds:>2} s, {direction:<15}: {len(again)} of 2 taken over"
            + (f" after {min(again):.1f} s" if again else "")
            + f", works again {back:.1f} s after the cut"
        )
        assert back < SLACK
        assert all(took < RECOVERY + 12 + SLACK for took in again)
    last = {fact.id: fact.pid for fact in fleet.starts(*held)}
    assert {task_id: fleet.field(task_id, "result") for task_id in held} == {
        task_id: f'"{pid}"' for task_id, pid in last.items()
    }, "the one that began last is the one that settled"
    assert max(Counter((fact.id, fact.attempt) for fact in fleet.starts()).values()) == 1
    assert seconds < 60 or len(recovered()) == 6
    losses = len(fleet.starts(*held)) - 6
    assert (fleet.counter("processed"), fleet.counter("failed")) == (206 + losses, losses)
    assert fleet.breaches() == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_producer_cut_from_the_server(fleet: Fleet, network: Network, home: Node, direction: str) -> None:
    fleet.start(url=url(home), within=network.node("worker").within)
    node = network.node("producer")
    report = fleet.folder / "report"
    command = [*node.within, sys.executable, str(HERE / "cut_producer.py"), url(home), str(report)]

    def told(how: str) -> list[list[str]]:
        rows = [line.split() for line in report.read_text().splitlines()] if report.exists() else []
        return [row for row in rows if len(row) == 3 and (row[2] == "stored") == (how == "stored")]

    with running(command, stderr=subprocess.DEVNULL) as process:
        until_sync(lambda: len(told("stored")) >= 50, what="the first tasks")
        network.cut(node, direction)
        pause_sync(15, proves="what is enqueued meanwhile fails or waits, and is not lost")
        network.heal(node)
        healed_at = time.time()
        until_sync(lambda: sum(float(at) > healed_at for _, at, _ in told("stored")) >= 50, what="tasks after the cut")
        Path(f"{report}.stop").touch()
        assert process.wait(30) == 0
    stored, unknown = {row[0] for row in told("stored")}, {row[0] for row in told("failed")}
    fleet.wait_done()
    runs = Counter(fact.id for fact in fleet.starts())
    back = min(float(at) for _, at, _ in told("stored") if float(at) > healed_at) - healed_at
    say(
        f"producer cut 15 s, {direction:<15}: {len(stored)} stored, {len(unknown)} errors, of which "
        f"{len(unknown & set(runs))} were stored; enqueues again {back:.1f} s after the cut"
    )
    assert set(runs) >= stored, f"{len(stored - set(runs))} lost"
    assert set(runs) <= stored | unknown
    assert max(runs.values()) == 1, "nothing is stored twice"
    assert back < SLACK
    assert fleet.breaches() == []


def test_the_only_recoverer_is_cut_while_a_worker_dies(fleet: Fleet, network: Network, home: Node) -> None:
    victim = fleet.start(url=url(home), within=network.node("victim").within, concurrency=5)
    ids = fleet.enqueue(5, gate="{n}")
    fleet.wait(lambda: len(fleet.starts()) == 5, "all starts")
    node = network.node("recoverer")
    recoverer = fleet.start(url=url(home), within=node.within, concurrency=5)
    network.cut(node, BOTH)
    victim.kill()
    fleet.open_gate("2")
    pause_sync(30, proves="nobody takes over what nobody can reach")
    assert len(fleet.starts()) == 5
    network.heal(node)
    healed_at = time.time()
    fleet.wait(lambda: len(fleet.finishes(*ids)) == 5, "the second runs", seconds=60)
    fleet.wait_done()
    took = max(fact.at for fact in fleet.starts() if fact.pid == recoverer.pid) - healed_at
    say(f"the only recoverer cut 30 s: all of a dead worker's tasks run again {took:.1f} s after the cut")
    assert took < RECOVERY + SLACK
    assert len(fleet.starts(*ids)) == 10
    assert fleet.breaches() == []


@pytest.mark.parametrize("seconds", [10, 30])
def test_the_server_moves_to_another_cable(fleet: Fleet, network: Network, home: Node, seconds: int) -> None:
    """Its link is gone for a while, with all connections open on both sides, and comes back as another one."""
    workers = [
        fleet.start(url=url(home), within=network.node(f"w{i}").within, concurrency=5, wait=False) for i in range(3)
    ]
    fleet.wait(lambda: all(worker.is_ready for worker in workers), "all workers")
    held = fleet.enqueue(15, gate="now", result=True)
    fleet.wait(lambda: len(fleet.starts()) == 15, "all starts")
    network.unplug(home)
    rest = fleet.enqueue(100, gate="now")
    pause_sync(seconds, proves="nobody gets a task while nobody reaches the server")
    assert {fact.id for fact in fleet.starts()} == set(held)
    network.plug(home)
    plugged_at = time.time()
    fleet.open_gate("now")
    fleet.wait(lambda: fleet.number_in("completed") == 15, "the end of what was running", seconds=90)
    fleet.wait(lambda: len({f.id for f in fleet.finishes(*rest)}) == 100, "the end of the others", seconds=90)
    fleet.wait(lambda: fleet.tasks_left() == 15, "their settlement")
    again = len(fleet.starts(*held)) - 15
    back = min(fact.at for fact in fleet.starts(*rest)) - plugged_at
    say(f"server gone {seconds:>2} s: {again} of 15 running tasks run again, work goes on {back:.1f} s later")
    assert back < SLACK
    assert len(fleet.starts(*rest)) == 100, "what was not running ran once"
    assert max(Counter((fact.id, fact.attempt) for fact in fleet.starts()).values()) == 1
    last = {fact.id: fact.pid for fact in fleet.starts(*held)}
    assert {one: fleet.field(one, "result") for one in held} == {one: f'"{pid}"' for one, pid in last.items()}
    assert fleet.breaches() == []
