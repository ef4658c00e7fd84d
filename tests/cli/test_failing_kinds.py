"""`veredus task show` of failed tasks of each kind: class, message, traceback or reason of each attempt."""

from __future__ import annotations

from tests.cli.conftest import Shop
from tests.cli.support import Command
from tests.support.waiting import until_sync
from veredus import App

KINDS = """\
import asyncio, os, signal, threading
from veredus import App, current

app = App(defaults={"max_retry": 1, "retry_delay": 0})


@app.task(name="loop")
async def on_loop(n: int) -> None:
    current().log(f"trying {n}")
    raise ValueError(f"no {n}")


@app.task(name="thread")
def in_thread(n: int) -> None:
    raise KeyError("name")


@app.task(name="process", run_in="process")
def in_process(n: int) -> None:
    raise LookupError(f"no {n}")


@app.task(name="times-out")
async def times_out(n: int) -> None:
    await asyncio.Event().wait()


@app.task(name="times-out-process", run_in="process")
def times_out_in_a_process(n: int) -> None:
    threading.Event().wait()


@app.task(name="kills-its-process", run_in="process")
def kills_its_process(n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="kills-its-worker")
async def kills_its_worker(n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="unreadable")
async def unreadable(n: int, more: list[int]) -> None: ...
"""

TIMEOUT = "error    veredus.errors.TaskTimeout: ran over its timeout of 1 s"
DIED = "error    veredus.handlers.executors.processes.ProcessDied: the process of this task was ended by SIGKILL"
SHOWN = {
    "loop": [
        "failed",
        "error    ValueError: no 1",
        "at       shop.on_loop:",
        'raise ValueError(f"no {n}")',
        "trying 1",
    ],
    "thread": ["failed", "error    KeyError: 'name'", "at       shop.in_thread:", 'raise KeyError("name")'],
    "process": ["failed", "error    LookupError: no 1", "at       shop.in_process:", 'raise LookupError(f"no {n}")'],
    "times-out": ["timed out", TIMEOUT, "at       shop.times_out:", "await asyncio.Event().wait()"],
    "times-out-process": ["timed out", TIMEOUT],
    "kills-its-process": ["killed", DIED],
    "kills-its-worker": ["lease lost", "error    its worker process ", "ended with signal SIGKILL"],
    "unreadable": ["unreadable", "error    veredus.errors.PayloadError: payload does not fit", "`more`"],
}


def test_show_says_of_each_attempt_what_failed_and_where(shop: Shop, veredus: Command) -> None:
    (shop.folder / "shop.py").write_text(KINDS)
    app = App(shop.server.url)

    def send(*kinds: str) -> None:
        for kind in kinds:
            timeout = 1 if kind.startswith("times-out") else 60
            app.enqueue_sync(kind, {"n": 1}, task_id=kind, max_retry=1, timeout=timeout)

    def archived() -> int:
        return int(shop.client.zcard("asynq:{default}:archived"))

    send("kills-its-worker")
    shop.start("-p", "2", "--process-pool", "2")
    until_sync(lambda: archived() == 1, what="the end of what kills its worker")
    send(*[kind for kind in SHOWN if kind != "kills-its-worker"])
    until_sync(lambda: archived() == len(SHOWN), what="the end of all others")
    app.close_sync()
    for kind, parts in SHOWN.items():
        out = veredus("task", "show", kind).out
        _, *attempts = out.split("\nattempt ")
        assert len(attempts) == 2, out
        for number, attempt in enumerate(attempts, 1):
            assert attempt.startswith(f"{number}: {parts[0]} after "), attempt
            assert "\n  worker   " in attempt
            for part in parts[1:]:
                assert part in attempt, (kind, attempt)
