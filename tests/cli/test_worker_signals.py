"""`veredus worker` as a process: signals, bursts, limits and several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shop
from tests.support.servers import RealServer, raw
from tests.support.waiting import PATIENCE, pause_sync, until_sync
from veredus import App
from veredus.process.supervisor import SAME_REQUEST
from veredus.wire import keys


def _pending(shop: Shop) -> int:
    return int(shop.client.llen("asynq:{default}:pending"))


def _terminate_twice(shop: Shop, process: subprocess.Popen[str]) -> None:
    """Once for patience, and again for none when that has been heard."""
    process.terminate()
    until_sync(lambda: "running tasks have up to" in shop.log(), what="the stop")
    pause_sync(SAME_REQUEST + 0.1, proves="one signal does not give back what runs")
    assert process.poll() is None
    process.terminate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_under_load_ends_it_with_0_and_loses_nothing(
    shop: Shop, send: Callable[..., Any], number: signal.Signals, processes: str
) -> None:
    for n in range(3000):
        shop_payload = {"n": n}
        if n == 0:
            send("slow", {"seconds": 0.5})
        send("quick", shop_payload)
    process = shop.start("-p", processes, "-c", "20")
    until_sync(lambda: len(shop.notes()) > 50)
    # as a terminal does it: the whole group gets SIGINT
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    done = shop.notes()
    assert "slow done" in done, "a running handler finishes"
    quick = [line.split()[1] for line in done if line.startswith("quick")]
    assert len(quick) == len(set(quick))
    assert len(quick) + _pending(shop) == 3000
    assert shop.client.llen("asynq:{default}:active") == 0
    assert shop.client.keys("asynq:servers*") == []


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_signal_gives_back_at_once(shop: Shop, send: Callable[..., Any], processes: str) -> None:
    send("slow", {"seconds": 60})
    process = shop.start("-p", processes)
    until_sync(lambda: shop.notes())
    _terminate_twice(shop, process)
    assert process.wait(PATIENCE) == 0, shop.log()
    assert "giving back 1 tasks" in shop.log()
    assert _pending(shop) == 1


CHILD = """
import asyncio, logging, sys
from pathlib import Path
from veredus import App
from veredus.worker import supervisor
from veredus.worker.config import WorkerConfig
from veredus.worker.shared_beat import SharedBeat
from veredus.worker.worker import Worker

logging.basicConfig(level=logging.INFO)
supervisor.SAME_REQUEST = 600.0  # so that no busy machine makes two wishes of one
app = App(sys.argv[1])

@app.task(name="slow")
async def slow() -> None:
    Path("begun").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)

sys.exit(supervisor.run_worker(Worker(app, WorkerConfig.make(), shared=SharedBeat(1))))
"""


def test_one_wish_that_reaches_a_child_twice_is_not_taken_for_impatience(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    """systemd tells every process, and the supervisor passes it on to its children."""
    (tmp_path / "child.py").write_text(CHILD)
    log = tmp_path / "log"
    app = App(valkey_server.url)
    handle = app.enqueue_sync("slow")
    app.close_sync()
    with log.open("w") as output:
        child = subprocess.Popen([sys.executable, "child.py", valkey_server.url], cwd=tmp_path, stderr=output)
    try:
        until_sync((tmp_path / "begun").exists)
        child.terminate()
        until_sync(lambda: "running tasks have up to" in log.read_text(), what="the stop")
        child.terminate()
        pause_sync(0.3, proves="the second signal gives nothing back")
        assert "giving back" not in log.read_text()
        (tmp_path / "gate").touch()
        assert child.wait(PATIENCE) == 0, log.read_text()
    finally:
        child.kill()
        child.wait()
    with valkey_server.client() as client:
        assert not client.exists(keys.task("default", handle.id))


def test_sigtstp_takes_nothing_new_and_sigterm_still_ends_it(shop: Shop, send: Callable[..., Any]) -> None:
    send("quick", {"n": 1})
    process = shop.start()
    until_sync(lambda: len(shop.notes()) == 1)
    process.send_signal(signal.SIGTSTP)

    def quiet() -> bool:
        return any(b"stopped" in raw(shop.client.get(key) or b"") for key in shop.client.keys("asynq:servers:*"))

    until_sync(quiet)
    send("quick", {"n": 2})
    pause_sync(0.5, proves="a quiet worker takes nothing")
    assert len(shop.notes()) == 1
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert _pending(shop) == 1


def test_a_process_task_survives_ctrl_c_of_the_whole_group(shop: Shop, send: Callable[..., Any]) -> None:
    send("cpu", {"seconds": 1.0})
    process = shop.start("--process-pool", "1")
    until_sync(lambda: shop.notes() == ["cpu begun"])
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert shop.notes() == ["cpu begun", "cpu done"]
    assert not [key for key in shop.client.scan_iter() if b":t:" in key]
    assert shop.client.llen("asynq:{default}:pending") == shop.client.llen("asynq:{default}:active") == 0
    assert _pending(shop) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_burst_ends_with_0_when_the_queue_is_empty(shop: Shop, send: Callable[..., Any], processes: str) -> None:
    for n in range(50):
        send("quick", {"n": n})
    ended = shop.run("worker", "shop:app", "--burst", "-p", processes, "--log-format", "json")
    assert ended.returncode == 0, ended.stderr
    assert len(shop.notes()) == 50
    assert _pending(shop) == 0


def test_a_process_is_replaced_after_so_many_tasks(shop: Shop, send: Callable[..., Any]) -> None:
    for n in range(25):
        send("quick", {"n": n})
    ended = shop.run("worker", "shop:app", "--burst", "--max-tasks", "10")
    assert ended.returncode == 0, ended.stderr
    pids = [line.split()[2] for line in shop.notes()]
    assert sorted(pids.count(pid) for pid in set(pids)) == [5, 10, 10]


def test_a_process_is_replaced_above_so_much_memory(shop: Shop, send: Callable[..., Any]) -> None:
    for n in range(8):
        send("fat", {"n": n})
    process = shop.start("--max-memory", "250", "-c", "1")
    until_sync(lambda: "this process will be replaced: it uses" in shop.log())
    for n in range(8, 10):
        send("fat", {"n": n})
    until_sync(lambda: len(shop.notes()) == 10)
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert sorted(int(line.split()[1]) for line in shop.notes()) == list(range(10))
    assert len({line.split()[2] for line in shop.notes()}) >= 2


def test_a_hung_event_loop_is_ended_by_a_second_signal(shop: Shop, send: Callable[..., Any]) -> None:
    """It hears nothing, so it cannot give its task back: the lease runs out, and another worker has it."""
    send("hang", {"busy": True})
    process = shop.start("--lease", "2")
    until_sync(lambda: shop.notes() == ["hanging"])
    process.terminate()
    pause_sync(0.5, proves="one signal leaves it its time")
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 70
    assert "the event loop hangs and does not stop" in shop.log()
    assert shop.client.llen("asynq:{default}:active") == 1
    other = shop.start("--lease", "2")
    until_sync(lambda: len(shop.notes()) == 2)
    other.kill()


def test_a_killed_process_is_replaced_and_its_task_runs_again(shop: Shop, send: Callable[..., Any]) -> None:
    send("slow", {"seconds": 3600})
    process = shop.start("-p", "2", "--lease", "3600")  # it does not run out in this test
    until_sync(lambda: shop.notes())
    os.kill(int(shop.notes()[0].split()[1]), signal.SIGKILL)
    until_sync(lambda: len(shop.notes()) == 2, what="the second run")
    until_sync(lambda: shop.log().count(" serves ") == 3, what="the process in its place")
    _terminate_twice(shop, process)
    assert process.wait(PATIENCE) == 0, shop.log()
    assert shop.log().count("ended with") == 1, shop.log()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_once_lets_running_handlers_finish(shop: Shop, send: Callable[..., Any], processes: str) -> None:
    """A terminal sends SIGINT to the whole group, and a supervisor passes it on: that is still one wish, not two."""
    send("slow", {"seconds": 2.0})
    process = shop.start("-p", processes)
    until_sync(lambda: shop.notes())
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 0, shop.log()
    assert shop.notes()[1:] == ["slow done"]
    assert _pending(shop) == 0
