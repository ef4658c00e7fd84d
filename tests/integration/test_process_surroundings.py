"""Handlers with run_in="process": what they send, log, raise and report arrives as from any other handler."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration import process_more_tasks as tasks
from tests.integration.support import FAST, Look
from tests.support.processes import running, veredus
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.handlers.executors.remote_errors import RemoteError
from veredus.model.job import Job
from veredus.telemetry.logs import TaskFields

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    tasks.app.use(url)
    yield tasks.app
    await tasks.app.close()


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What the handlers of the worker's root logger get to see."""
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    keep = Keep()
    keep.addFilter(TaskFields())
    quiet = logging.getLogger("tests.of.processes.quiet")
    before = logging.root.level
    logging.root.addHandler(keep)
    logging.root.setLevel(logging.INFO)
    quiet.setLevel(logging.WARNING)
    yield seen
    logging.root.removeHandler(keep)
    logging.root.setLevel(before)
    quiet.setLevel(logging.NOTSET)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_follow_up_task_goes_to_the_server_that_the_worker_uses(
    app: App, look: Look, url: str, how: str
) -> None:
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.follow_up.enqueue(how)
        await look.ends(handle.id, "completed")
    assert json.loads((await look.fields(handle.id))["result"]) == url
    assert await look.of("noted").pending() == ["followed"]


MODULE = """
from veredus import App

app = App()

@app.task(run_in="process")
def first() -> None:
    second.using(task_id="second").enqueue_sync()

@app.task
def second() -> None: ...
"""


async def test_the_option_redis_of_the_command_applies_in_the_process(url: str, look: Look, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    await App(url).enqueue("shop.first", task_id="first")
    environment = {key: value for key, value in os.environ.items() if not key.endswith("REDIS_URL")}
    environment["VEREDUS_EMBEDDED"] = "off"
    command = veredus("worker", "shop:app", "--redis", url, "--burst", "--process-pool", "1")
    with running(command, cwd=tmp_path, env=environment) as program:
        assert await asyncio.to_thread(program.wait, PATIENCE) == 0
    assert await look.state("first") == "gone"
    assert await look.state("second") == "gone"
    assert await look.counters() == (2, 0)


async def test_a_test_has_the_follow_up_tasks_of_processes_and_its_clock_applies(app: App, look: Look) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    async with app.test(start=start, process_pool=1) as q:
        later = await tasks.follow_up_later.enqueue()
        await q.drain(raises=True)
        assert await later.result() == start.timestamp()
        sent = q.assert_enqueued(tasks.noted.call(2), delay=3600, headers={"from": "child"}, times=1)
        assert sent.queue == "noted"
        assert await q.count("scheduled", "noted") == 1
        assert [run.type for run in await q.advance(timedelta(hours=1))] == [tasks.noted.name]
        await tasks.follow_up_later.enqueue()
        await q.drain(raises=True)
        assert q.sent[-1].at == start + timedelta(hours=1)
        assert await q.count("scheduled", "noted") == 1
    assert await look.client.dbsize() == 0, "a test wrote to the real server"


SCRIPT = """
import logging, sys
from veredus import App

handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("<%(levelname)s %(name)s %(message)s>"))
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)
app = App()

@app.task(run_in="process")
def first() -> None:
    logging.getLogger("shop").info("running %s", first.name)
    app.enqueue_sync(second.name, {"n": 1}, task_id="second")

@app.task(run_in="process")
def second(n: int) -> None:
    raise Bad("really")

class Bad(Exception): ...

def told(error, job):
    print("on_error", type(error) is Bad, error, flush=True)

if __name__ == "__main__":
    app.use(sys.argv[1])
    first.using(task_id="first").enqueue_sync()
    sys.exit(app.worker(burst=True, process_pool=1, on_error=told).run())
"""


async def test_tasks_of_a_script_have_the_same_names_classes_and_log_lines_in_its_processes(
    url: str, look: Look, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    streams = {"stdout": -1, "stderr": -1}
    with running([sys.executable, "script.py", url], cwd=tmp_path, **streams) as program:
        out, err = await asyncio.to_thread(program.communicate, timeout=PATIENCE)
    assert program.returncode == 0, err
    assert (await look.message("second")).type == "script.second"
    assert await look.state("second") == "retry"
    assert out == "on_error True really\n"
    assert [line for line in err.splitlines() if "<INFO shop" in line] == ["<INFO shop running script.first>"]


async def test_log_records_reach_the_handlers_of_the_worker_with_level_name_task_and_traceback(
    app: App, look: Look, records: list[logging.LogRecord]
) -> None:
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.talk.enqueue()
        await look.ends(handle.id, "gone")
    told = [record for record in records if record.name.startswith("tests.of.processes")]
    assert [(one.levelname, one.name, one.getMessage()) for one in told] == [
        ("INFO", "tests.of.processes", "at 50%"),
        ("ERROR", "tests.of.processes", "it went wrong"),
    ]
    one: Any
    for one in told:
        assert (one.task_id, one.task_type, one.queue, one.attempt) == (handle.id, tasks.talk.name, "default", 1)
        assert one.process != os.getpid()
        assert one.funcName == "talk"
    one = told[0]
    assert (one.step, one.where) == (2, "here")
    assert "KeyError: 'lost'" in logging.Formatter().format(told[1])


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("declined", tasks.Declined, "declined with 402: no money"),
        ("unknowable", RemoteError, "no way to say"),
        ("missing file", FileNotFoundError, "[Errno 2] No such file or directory: '/no/such/file'"),
        ("caused", RuntimeError, "outer"),
        ("stop", RuntimeError, "the handler raised StopIteration(3)"),
    ],
)
async def test_the_worker_gets_the_error_of_a_process_with_its_class_text_fields_and_traceback(
    app: App, look: Look, how: str, kind: type[BaseException], text: str
) -> None:
    told: list[BaseException] = []

    def on_error(error: BaseException, job: Job) -> None:
        told.append(error)

    def is_failure(error: BaseException) -> bool:
        return not (isinstance(error, tasks.Declined) and error.code == 402)

    async with app.worker(["default"], **FAST, process_pool=1, on_error=on_error, is_failure=is_failure):
        handle = await tasks.fail.enqueue(how)
        message = await look.ends(handle.id, "retry")
    [error] = told
    assert isinstance(error, kind)
    assert str(error) == text
    assert message is not None
    assert message.retried == (0 if how == "declined" else 1)
    if how != "stop":
        assert "process_more_tasks.py" in error.__notes__[0]
        assert "in fail" in error.__notes__[0]
        assert "executors" not in error.__notes__[0]
    if how == "unknowable":
        assert (type(error).__name__, type(error).__module__) == ("Unknowable", tasks.__name__)
    if how == "caused":
        assert isinstance(error.__cause__, tasks.Declined)
        assert str(error.__cause__) == "declined with 1: inner"


async def test_an_error_of_ten_megabytes_is_cut_and_the_process_goes_on(app: App, look: Look) -> None:
    told: list[BaseException] = []
    async with app.worker(["default"], **FAST, process_pool=1, on_error=lambda error, job: told.append(error)):
        handle = await tasks.fail.enqueue("long")
        await look.ends(handle.id, "retry")
    [error] = told
    assert type(error) is ValueError
    assert 1000 < len(str(error)) < 100_000
    assert len(error.__notes__[0]) < 100_000


async def test_skip_retry_as_the_cause_of_an_error_counts_in_a_process_too(app: App, look: Look) -> None:
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.fail.enqueue("caused by skip")
        await look.ends(handle.id, "archived")


async def test_progress_and_an_early_result_of_a_process_are_written_while_it_runs(
    app: App, look: Look, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.report.enqueue(str(release))

        async def half() -> bool:
            progress = (await handle.status()).progress
            return progress is not None and (progress.share, progress.note) == (0.5, "half")

        await until(half)
        await until(release.with_suffix(".told").exists)
        assert (await look.fields(handle.id))["result"] == b"early"
        release.touch()
        await look.ends(handle.id, "completed")
    assert (await look.fields(handle.id))["result"] == b"early"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("client", 'current().client does not work in a handler with run_in="process": run it in a thread'),
        ("state", 'app.state is not available in a handler with run_in="process"'),
        ("share", "share"),
    ],
)
async def test_what_cannot_work_in_a_process_says_what_to_do_instead(
    app: App, look: Look, what: str, text: str
) -> None:
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.misuse.enqueue(what)
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert text in message.error_msg


async def test_a_handler_in_a_process_may_use_multiprocessing(app: App, look: Look) -> None:
    async with app.worker(["default"], **FAST, process_pool=1):
        handle = await tasks.compute_in_parallel.enqueue(3)
        await look.ends(handle.id, "completed")
    assert (await look.fields(handle.id))["result"] == b"[3,2,1]"


HIDDEN = """
import sys
from veredus import App

app = App(sys.argv[1])

if __name__ == "__main__":
    @app.task(run_in="process", max_retry=0)
    def hidden() -> None: ...

    hidden.using(task_id="hidden").enqueue_sync()
    sys.exit(app.worker(burst=True, process_pool=1).run())
"""


@pytest.mark.parametrize("start", [["script.py"], ["-c", HIDDEN]], ids=["script", "command"])
async def test_a_task_that_a_process_cannot_import_says_so(
    url: str, look: Look, tmp_path: Path, start: list[str]
) -> None:
    (tmp_path / "script.py").write_text(HIDDEN)
    with running([sys.executable, *start, url], cwd=tmp_path) as program:
        assert await asyncio.to_thread(program.wait, PATIENCE) == 0
    error = (await look.message("hidden")).error_msg
    assert await look.state("hidden") == "archived"
    assert ("script.hidden is missing" if start == ["script.py"] else "move it into a module") in error
