"""Handlers with run_in="process": results, errors, timeouts that kill, and no more taken than there are processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import process_tasks
from tests.integration.support import FAST, Look
from tests.support.processes import running
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until, until_sync
from veredus import App

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


async def test_a_payload_that_does_not_fit_is_archived(app: App, look: Look) -> None:
    async with app.worker(**FAST, process_pool=1):
        handle = await app.enqueue(process_tasks.compute.name, {"n": "seven"})
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert "n" in message.error_msg
    assert message.retried == 0


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
import asyncio, sys
from tests.integration import process_tasks
from veredus.model.message import TaskMessage
from veredus.wire.messages import encode_task
from veredus.worker.executors.processes import ProcessPool

task = process_tasks.overrun
call = task.call(sys.argv[1])
message = TaskMessage(type=task.name, payload=call.payload, id="1", queue="default", timeout=600)

async def main():
    await ProcessPool(1).run(task.function, encode_task(message))

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
