"""Handlers with run_in="process": results, errors, timeouts that kill, and no more taken than there are processes."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import process_more_tasks, process_tasks
from tests.integration.support import FAST, Look
from tests.support.processes import running, veredus
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until, until_sync
from veredus import App
from veredus.handlers.context import Context
from veredus.handlers.executors.processes import ProcessDied, ProcessNotReady, ProcessPool
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.wire.messages import encode_task

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    process_tasks.app.use(url)
    yield process_tasks.app
    await process_tasks.app.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_results_come_back_encoded(app: App, look: Look) -> None:
    async with app.worker(**FAST, process_pool=1):
        computed = await process_tasks.compute.enqueue(7, scale=0.5)
        raw = await process_tasks.raw_result.enqueue()
        nothing = await process_tasks.no_result.enqueue()
        me = await process_tasks.about_me.enqueue()
        await look.ends(computed.id, "completed")
        await look.ends(raw.id, "completed")
        await look.ends(nothing.id, "gone")
        await look.ends(me.id, "completed")
    assert (await look.fields(computed.id))["result"] == b"24.5"
    assert (await look.fields(raw.id))["result"] == b"\x00\xff"
    told = json.loads((await look.fields(me.id))["result"])
    assert told["pid"] != os.getpid()
    assert told["left"] == pytest.approx(100, abs=30)
    expected = {"id": me.id, "queue": "default", "attempt": 1, "headers": {"h": "1"}}
    assert {name: told[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("how", "state", "text"),
    [
        ("skip", "archived", "no more"),
        ("wrapped skip", "archived", "wrapped"),
        ("revoke", "gone", ""),
        ("fail", "retry", "boom"),
        ("own payload error", "retry", "of another task"),
        ("exit", "retry", "bye"),
        ("die", "retry", "exit code 7"),
    ],
)
async def test_an_error_in_a_process_steers_as_anywhere_else(
    app: App, look: Look, how: str, state: str, text: str
) -> None:
    async with app.worker(**FAST, process_pool=1):
        bad, good = await process_tasks.behave.enqueue(how), await process_tasks.no_result.enqueue()
        message = await look.ends(bad.id, state)
        await look.ends(good.id, "gone")
    if message is not None:
        assert text in message.error_msg


async def test_a_payload_that_does_not_fit_is_retried_and_what_go_would_read_is_read(app: App, look: Look) -> None:
    async with app.worker(**FAST, process_pool=1):
        handle = await app.enqueue(process_tasks.compute.name, b'{"n":"seven"}')
        tolerated = await app.enqueue(process_tasks.compute.name, b'{"n":7.0,"scale":null,"added":1}')
        message = await look.ends(handle.id, "retry")
        assert await tolerated.result(timeout=30) == 49.0
    assert message is not None
    assert message.error_msg == "PayloadError: payload does not fit: Expected `int`, got `str` - at `$.n`"
    assert message.retried == 1


async def test_a_handler_that_overruns_is_killed(app: App, look: Look, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with app.worker(**FAST, process_pool=1):
        handle = await process_tasks.overrun.enqueue(str(file))
        message = await look.ends(handle.id, "retry")
        assert message is not None
        assert message.error_msg == "context deadline exceeded"
        if file.exists():  # else it did not get as far as that within its second
            pid = int(file.read_text())
            await until(lambda: not _alive(pid))


async def test_a_cancelled_handler_is_killed_and_its_process_takes_no_other_task(
    app: App, look: Look, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    async with app.worker(**FAST, process_pool=1):
        handle = await process_tasks.overrun.using(timeout=600).enqueue(str(file))
        pid = int(await until(lambda: file.exists() and file.read_text()))
        await handle.cancel(then="delete")
        await until(lambda: not _alive(pid))
        computed = await process_tasks.compute.enqueue(7, scale=0.5)
        await look.ends(computed.id, "completed")
    assert (await look.fields(computed.id))["result"] == b"24.5"


PARENT = """
import asyncio, sys, time
from tests.integration import process_more_tasks, process_tasks
from veredus.model.message import TaskMessage
from veredus.wire.messages import encode_task
from veredus.model.job import Job
from veredus.handlers.context import Context
from veredus.handlers.executors.processes import ProcessPool

task = process_tasks.overrun
call = task.call(sys.argv[1])
message = TaskMessage(type=task.name, payload=call.payload, id="1", queue="default", timeout=600)

async def main():
    async with ProcessPool(1).slot(task) as child:
        await child.run(task, encode_task(message), Context(Job(message), time.time() + 600))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_process_ends_with_the_worker_that_is_killed(tmp_path: Path) -> None:
    file, script = tmp_path / "pid", tmp_path / "parent.py"
    script.write_text(PARENT)
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    parent = subprocess.Popen([sys.executable, str(script), str(file)], env={**os.environ, "PYTHONPATH": paths})
    pid = 0
    try:
        pid = int(until_sync(lambda: file.exists() and file.read_text()))
        parent.kill()
        parent.wait()
        until_sync(lambda: not _alive(pid), what="the end of the process")
    finally:
        parent.kill()
        parent.wait()
        if pid and _alive(pid):
            os.kill(pid, signal.SIGKILL)


async def test_no_more_is_taken_than_there_are_processes(app: App, look: Look, tmp_path: Path) -> None:
    release, cpu = tmp_path / "release", look.of("cpu")
    handles = [await process_tasks.until.enqueue(str(release)) for _ in range(6)]
    async with app.worker(["cpu"], **FAST, process_pool=2):
        await until(lambda: len(list(tmp_path.glob("release.*"))) == 2)
        assert sorted(await cpu.active()) == sorted(handle.id for handle in handles[:2])
        assert await cpu.pending() == [handle.id for handle in handles[2:]]
        release.touch()
        for handle in handles:
            await cpu.ends(handle.id, "gone")


@pytest.mark.parametrize("task", [process_tasks.with_dependency, process_tasks.with_a_loop_of_its_own])
async def test_dependencies_are_provided_in_the_process(app: App, look: Look, task: Any) -> None:
    async with app.worker(**FAST, process_pool=1):
        handle = await task.enqueue(2)
        await look.ends(handle.id, "completed")
    assert (await look.fields(handle.id))["result"] == b"42"


@pytest.mark.parametrize(("fails", "said"), [(False, "closed"), (True, "closed after boom")])
async def test_what_a_dependency_opened_is_closed_in_the_process(
    app: App, look: Look, tmp_path: Path, fails: bool, said: str
) -> None:
    notes = tmp_path / "notes"
    async with app.worker(**FAST, process_pool=1):
        handle = await process_tasks.with_resource.using(headers={"notes": str(notes)}).enqueue(fails)
        await look.ends(handle.id, "archived" if fails else "gone")
    assert notes.read_text() == said


async def _pid(look: Look) -> int:
    handle = await process_tasks.about_me.enqueue()
    await look.ends(handle.id, "completed")
    return int(json.loads((await look.fields(handle.id))["result"])["pid"])


async def test_a_process_is_used_again_after_an_error_replaced_when_it_died_and_ended_with_the_worker(
    app: App, look: Look
) -> None:
    async with app.worker(**FAST, process_pool=1):
        first = await _pid(look)
        for how, state in (("fail", "retry"), ("skip", "archived")):
            await look.ends((await process_tasks.behave.enqueue(how)).id, state)
        assert await _pid(look) == first
        await look.ends((await process_tasks.behave.enqueue("die")).id, "retry")
        second = await _pid(look)
        assert second != first
        assert _alive(second)
    await until(lambda: not _alive(second), what="the end of the process")


async def test_a_task_that_kills_its_process_every_time_is_archived_whatever_its_retries(app: App, look: Look) -> None:
    async with app.worker(**FAST, process_pool=1, retry_delay=0):
        handle = await process_tasks.behave.using(max_retry=100).enqueue("die")
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert message.retried == 2
    assert (
        message.error_msg == "killed its worker 3 times: ProcessDied: the process of this task ended with exit code 7"
    )


async def test_a_process_that_died_while_it_had_nothing_to_do_costs_no_task(app: App, look: Look) -> None:
    async with app.worker(**FAST, process_pool=1):
        first = await _pid(look)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not _alive(first))
        handle = await process_tasks.about_me.using(max_retry=0).enqueue()
        await look.ends(handle.id, "completed")


WAYS = ["timeout", "cancel", "stop", "handler killed", "worker killed"]


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_a_handler_started_ends_with_its_process(url: str, look: Look, tmp_path: Path, way: str) -> None:
    """Also what it started in sessions of their own, and what those started."""
    more, file = process_more_tasks.have_children, tmp_path / "pids"
    process_more_tasks.app.use(url)
    handle = await more.using(timeout=6 if way == "timeout" else 600).enqueue(str(file))
    root = Path(__file__).parents[2]
    command = veredus("worker", "tests.integration.process_more_tasks:app", "--redis", url, "--shutdown-timeout", "0.1")
    pids: list[int] = []
    try:
        with running([*command, "-q", "default", "--process-pool", "1"], cwd=root) as worker:
            await until(file.exists)
            pids += json.loads(file.read_text())
            assert all(map(_alive, pids))
            if way == "cancel":
                await handle.cancel(then="delete")
            elif way == "stop":
                worker.terminate()
            elif way == "handler killed":
                os.kill(pids[0], signal.SIGKILL)
            elif way == "worker killed":
                worker.kill()
            await until(lambda: not any(map(_alive, pids)), what=f"the end of {pids}")
    finally:
        await process_more_tasks.app.close()
        for pid in json.loads(file.read_text()) if file.exists() else []:
            if _alive(pid):
                os.kill(pid, signal.SIGKILL)


async def test_closing_a_pool_kills_its_processes_also_the_busy_ones(tmp_path: Path) -> None:
    file, pool, task = tmp_path / "pids", ProcessPool(1), process_more_tasks.have_children
    running = asyncio.create_task(_run_in(pool, task, str(file), 1 << 28))
    await until(file.exists)
    pids = json.loads(file.read_text())
    pool.close()
    assert not any(map(_alive, pids))
    with pytest.raises(ProcessDied):
        await running
    with pytest.raises(ProcessNotReady):
        await _run_in(pool, task, str(file))


async def test_a_report_that_cannot_be_written_fails_in_the_handler_instead_of_hanging(tmp_path: Path) -> None:
    pool = ProcessPool(1)
    try:
        with pytest.raises(LookupError, match="no worker runs this handler"):
            await _run_in(pool, process_more_tasks.report, str(tmp_path / "release"))
    finally:
        pool.close()


async def test_a_process_that_cannot_start_is_no_crash_of_its_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    pool = ProcessPool(1)
    try:
        with pytest.raises(ProcessNotReady, match="exit code 9"):
            await _run_in(pool, importlib.import_module("deadly").task)
    finally:
        pool.close()


DEADLY = f"""
import os
from veredus import App

if os.getpid() != {os.getpid()}:
    os._exit(9)

@App("redis://127.0.0.1:1").task(run_in="process")
def task() -> None: ...
"""


async def _run_in(pool: ProcessPool, task: Any, *args: Any) -> None:
    """With a context that no worker has made."""
    payload = task.call(*args).payload or b""
    message = TaskMessage(type=task.name, payload=payload, id="1", queue="default", timeout=600)
    async with pool.slot(task) as child:
        await child.run(task, encode_task(message), Context(Job(message), time.time() + 600))


SCRIPT = """
import sys
from veredus import App

app = App(sys.argv[1])

@app.task(run_in="process", retention=60)
def double(n: int) -> int:
    return 2 * n

if __name__ == "__main__":
    double.using(task_id="one").enqueue_sync(21)
    sys.exit(app.worker(burst=True, process_pool=1).run())
"""


async def test_a_script_that_is_run_itself_may_have_such_tasks(url: str, look: Look, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with running([sys.executable, "script.py", url], cwd=tmp_path) as program:
        assert await asyncio.to_thread(program.wait, PATIENCE) == 0
    assert (await look.fields("one"))["result"] == b"42"


ROUTED = {
    "routed_app.py": "from veredus import App\napp = App(include=['routed_tasks'])\n",
    "routed_tasks.py": """
from veredus import Router
router = Router()

@router.task(run_in="process")
def double(n: int) -> int:
    return 2 * n

@router.task(run_in="process")
def send_double(n: int) -> str:
    return double.enqueue_sync(n).id  # in the process too it is a task of the app
""",
}


async def test_a_routers_task_runs_in_a_process(url: str, look: Look, tmp_path: Path) -> None:
    for name, text in ROUTED.items():
        (tmp_path / name).write_text(text)
    sender = App(url)
    async with sender:
        handle = await sender.enqueue("routed_tasks.send_double", {"n": 21})
        with running([*veredus("worker", "routed_app:app"), "--redis", url, "--burst"], cwd=tmp_path) as worker:
            second = await handle.result(PATIENCE)
            assert await sender.handle(second).result(PATIENCE) == 42
            worker.wait(PATIENCE)
