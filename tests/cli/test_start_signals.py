"""A signal while a worker, a gateway or a scheduler is starting: it ends with 0 and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, pause, until
from veredus import App

TERM, INT = signal.SIGTERM, signal.SIGINT

SHOP = """\
import asyncio, contextlib, gc, logging, os, signal, threading
from veredus import App
from veredus.gateway.ports import Ports

POINT, NUMBER, MAIN = os.environ["POINT"], int(os.environ["NUMBER"]), os.getpid()
sent = False


def reached(point):
    global sent
    if point != POINT or sent:
        return
    sent = True
    os.kill(MAIN, NUMBER)
    if os.getpid() != MAIN:  # the supervisor passes it on; this child gets it at this very point
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.asynccontextmanager
async def lifespan(app):
    reached("lifespan")
    if POINT == "lifespan":
        await asyncio.Event().wait()
    yield
    if POINT == "lifespan":
        print("closed a lifespan that was never open", flush=True)


class Reader(logging.Handler):
    def emit(self, record):
        if " serves " in record.getMessage() or " is ready on " in record.getMessage():
            reached("ready")
        if " leads " in record.getMessage():
            reached("leads")


async def listen(self):
    reached("visible")
    await asyncio.Event().wait()


def freeze():
    reached("freeze")


if POINT == "visible":
    Ports.listen = listen
gc.freeze = freeze
logging.getLogger("veredus").addHandler(Reader())
os.register_at_fork(after_in_child=lambda: reached("fork"))
app = App(lifespan=lifespan)


@app.action("echo", where="gateway")
async def echo(text: str) -> str:
    return text


@app.cron("@every 3600s", queue="q")
async def beat(): ...


if POINT == "import":
    reached("import")
    threading.Event().wait()  # an import that takes for ever
if POINT == "swallowed":
    try:
        reached("swallowed")
        threading.Event().wait(0.1)
    except BaseException:
        pass
"""

PORTS = ["--ws", "127.0.0.1:{port}", "--quic", "off", "--http", "off"]
COMMANDS = {
    "worker": ["worker", "shop:app", "--no-scheduler"],
    "workers": ["worker", "shop:app", "--no-scheduler", "-p", "2"],
    "gateway": ["gateway", "shop:app", *PORTS],
    "gateways": ["gateway", "shop:app", *PORTS, "--processes", "2"],
    "scheduler": ["scheduler", "shop:app"],
}
POINTS = {
    "worker": ["import", "swallowed", "lifespan", "ready", "freeze"],
    "workers": ["import", "swallowed", "fork", "lifespan", "ready", "freeze"],
    "gateway": ["import", "lifespan", "visible", "ready", "freeze"],
    "gateways": ["import", "fork", "lifespan", "visible", "freeze"],
    "scheduler": ["import", "swallowed", "ready", "leads"],
}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command in a folder with the app; whatever is left of it at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(
        command: list[str], url: str, *, point: str = "", number: int = TERM, source: str = SHOP
    ) -> subprocess.Popen[str]:
        (tmp_path / "shop.py").write_text(source)
        process = subprocess.Popen(
            [sys.executable, "-m", "veredus", *(part.format(port=free_port()) for part in command)],
            cwd=tmp_path,
            env={**os.environ, "VEREDUS_REDIS_URL": url, "POINT": point, "NUMBER": str(int(number))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ends_cleanly(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    for word in ("Traceback", "ended with", "ERROR", "CRITICAL", "never open"):
        assert word not in said, said


def left_behind(server: RealServer) -> list[bytes]:
    """Whatever says that somebody lives, leads or works. A schedule remembers its last tick."""
    with server.client() as client:
        return sorted(key for key in client.keys("*") if key != b"asynq:queues" and b":cron:" not in key)


@pytest.mark.parametrize(
    ("what", "point", "number"),
    [(what, point, TERM) for what in COMMANDS for point in POINTS[what]]
    + [("worker", "import", INT), ("worker", "lifespan", INT), ("worker", "freeze", INT)]
    + [("workers", "fork", INT), ("gateway", "ready", INT), ("gateways", "fork", INT), ("scheduler", "ready", INT)],
)
def test_a_signal_at_any_point_of_the_start_ends_it_cleanly(
    start: Start, valkey_server: RealServer, what: str, point: str, number: int
) -> None:
    ends_cleanly(start(COMMANDS[what], valkey_server.url, point=point, number=number))
    assert left_behind(valkey_server) == []


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("what", COMMANDS)
def test_a_signal_while_it_waits_for_the_first_answer_of_redis_ends_it_at_once(
    start: Start, what: str, number: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        process = start(COMMANDS[what], f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        asked, _ = silent.accept()
        with asked:
            assert asked.recv(1)
            os.killpg(process.pid, number)  # as a terminal does it
            ends_cleanly(process)


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("what", ["worker", "workers", "gateway", "scheduler"])
def test_a_signal_before_the_command_is_loaded_ends_it_cleanly(
    start: Start, tmp_path: Path, what: str, number: int
) -> None:
    """The first library that it loads sends it here; the server is never asked for anything."""
    send = f"import os, threading\nos.kill(os.getpid(), {int(number)})\nthreading.Event().wait()\n"
    (tmp_path / "click.py").write_text(send)
    ends_cleanly(start(COMMANDS[what], "redis://127.0.0.1:1"))


def test_a_command_that_only_looks_is_ended_by_a_signal_as_any_other(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        process = start(["gateway", "sessions"], f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        asked, _ = silent.accept()
        with asked:
            assert asked.recv(1)
            process.terminate()
            process.communicate(timeout=PATIENCE)
    assert process.returncode == -TERM


def run(program: str, server: RealServer, folder: Path, *arguments: str) -> None:
    """A program that runs a worker by itself; it ends with 0."""
    (folder / "run.py").write_text(program)
    command, environment = [sys.executable, "run.py", *arguments], {**os.environ, "VEREDUS_REDIS_URL": server.url}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr


COMPANION = """\
import asyncio, contextlib, os, signal, sys
from veredus import App

app = App()
running = asyncio.Event()


@app.task(name="slow")
async def slow():
    running.set()
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def companion(worker):
    await running.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()
    yield


sys.exit(app.worker(companions=[companion], shutdown_timeout=0.1).run())
"""


async def test_a_task_that_is_taken_before_the_start_is_over_is_given_back(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    async with App(valkey_server.url) as app:
        await app.enqueue("slow", task_id="one")
    await asyncio.to_thread(run, COMPANION, valkey_server, tmp_path)
    with valkey_server.client() as client:
        assert client.lrange("asynq:{default}:pending", 0, -1) == [b"one"]
        assert client.llen("asynq:{default}:active") == 0
        assert client.keys("asynq:servers*") == []


AFTERWARDS = """\
import os, signal, sys, threading
from veredus import App

app = App()
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGTSTP)]
code = app.worker(burst=True, processes=int(sys.argv[1])).run()
after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGTSTP)]
assert before == after, after
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
sys.exit(code)
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_program_has_its_own_handlers_back_after_a_worker(
    valkey_server: RealServer, tmp_path: Path, processes: str
) -> None:
    run(AFTERWARDS, valkey_server, tmp_path, processes)


AT_THE_END = """\
import atexit, logging, os, signal, threading
from veredus import App

app = App()
MAIN = os.getpid()


class Last(logging.Handler):
    def close(self):  # what a child does last
        if os.getpid() != MAIN:
            os.kill(os.getpid(), signal.SIGTERM)


logging.getLogger("last").addHandler(last := Last())
atexit.register(threading.Event().wait)  # what an app may do to a process that ends
atexit.register(os.kill, MAIN, signal.SIGTERM)
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_when_all_is_done_does_not_change_the_exit_code(
    start: Start, valkey_server: RealServer, processes: str
) -> None:
    """Such as the second one of an impatient user, or that of systemd after the supervisor's."""
    process = start(["worker", "shop:app", "--burst", "-p", processes], valkey_server.url, source=AT_THE_END)
    ends_cleanly(process)
    assert left_behind(valkey_server) == []


QUIET = """\
import asyncio, contextlib, os, signal
from veredus import App

MAIN = os.getpid()


@contextlib.asynccontextmanager
async def lifespan(app):
    if os.getpid() == MAIN:
        os.kill(MAIN, signal.SIGTSTP)
        for _ in range(10):  # turns of the loop in which it is heard: the start is not over
            await asyncio.sleep(0.001)
    yield


os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTSTP))
app = App(lifespan=lifespan)


@app.task(name="quick")
async def quick(): ...
"""


@pytest.mark.parametrize("processes", [1, 2])
async def test_told_to_be_quiet_while_it_starts_it_takes_nothing_and_is_not_suspended(
    start: Start, valkey_server: RealServer, processes: int
) -> None:
    async with App(valkey_server.url) as app:
        await app.enqueue("quick", task_id="one")
    process = start(["worker", "shop:app", "-p", str(processes)], valkey_server.url, source=QUIET)
    with valkey_server.client() as client:

        def quiet() -> bool:
            records = [client.get(key) or b"" for key in client.keys("asynq:servers:*")]
            return len(records) == processes and all(b"stopped" in bytes(record) for record in records)

        await until(quiet, what="the quiet workers")
        await pause(0.3, proves="a quiet worker takes nothing")
        assert client.lrange("asynq:{default}:pending", 0, -1) == [b"one"]
        process.terminate()
        await asyncio.to_thread(ends_cleanly, process)
        assert client.lrange("asynq:{default}:pending", 0, -1) == [b"one"]
