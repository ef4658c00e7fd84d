"""What the handlers of the table do: plain functions in threads and processes, and `async def` for the loop."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.support.waiting import pause_sync, until, until_sync
from veredus import App, RevokeTask, SkipRetry, current


@asynccontextmanager
async def _shelf(app: App) -> AsyncIterator[dict[str, str]]:
    yield {"shelf": "beans"}


app = App(result_ttl=60, lifespan=_shelf)
logger = logging.getLogger("shop")

FOLLOW_UPS = "follow-ups"
"""The queue of follow-up tasks. No worker serves it, so that they stay there to be seen."""
LONG = 60.0
"""Seconds that no handler of the table lasts: something ends it before."""


def note(what: str, **facts: Any) -> None:
    """Add a line to the file of notes; short lines of several processes do not mix."""
    line = {"task": current().id, "what": what, "at": time.monotonic(), "pid": os.getpid(), **facts}
    with open(os.environ["HANDLER_NOTES"], "ab", buffering=0) as notes:
        notes.write(json.dumps(line).encode() + b"\n")


def returns(value: Any) -> Callable[[], Any]:
    return lambda: value


def raises(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def body() -> NoReturn:
        raise make()

    return body


class OutOfStock(Exception):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Quit(BaseException):
    pass


class NeedsArguments(Exception):
    """One that cannot be made again from its words."""

    def __init__(self, item: str, amount: int) -> None:
        super().__init__(f"{amount} of {item}")


def skip_from_another() -> NoReturn:
    """As in Go's errors.Is: the class counts also where it is the cause."""
    raise OutOfStock("no beans") from SkipRetry("never")


def skip_in_a_group() -> NoReturn:
    raise ExceptionGroup("many", [ValueError("one"), SkipRetry("never")])


def revoke() -> NoReturn:
    raise RevokeTask("not wanted any more")


def exit_with_text() -> NoReturn:
    sys.exit("bye")


def returns_object() -> object:
    return object()


def returns_generator() -> Iterator[int]:
    return (n for n in range(3))


async def _step() -> int:
    return 1


def returns_coroutine() -> Coroutine[Any, Any, int]:
    return _step()


def waits_until_cancelled() -> None:
    current().wait_cancelled(LONG)


async def waits_until_cancelled_on_loop() -> None:
    await asyncio.Event().wait()


def waits_in_the_first_attempt() -> None:
    if current().attempt == 1:
        current().wait_cancelled(LONG)


async def waits_in_the_first_attempt_on_loop() -> None:
    if current().attempt == 1:
        await asyncio.Event().wait()


def ignores_that_its_time_is_over(more: float) -> Callable[[], None]:
    """A second, and so much more."""

    def body() -> None:
        if current().attempt == 1:
            pause_sync(1.0 + more, proves="a handler that does not listen goes on")

    return body


def ignores_that_its_time_is_over_on_loop(more: float) -> Callable[[], Coroutine[Any, Any, None]]:
    async def body() -> None:
        if current().attempt > 1:
            return
        ends_at = time.monotonic() + 1.0 + more
        while (left := ends_at - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                pass

    return body


def logs() -> None:
    logger.info("%d beans for %s", 5, "Ann")
    logger.error("no beans left")


def reports() -> int:
    current().progress_sync(0.5, "half")
    current().progress_sync(1.0, "all")
    return 1


async def reports_on_loop() -> int:
    await current().progress(0.5, "half")
    await current().progress(1.0, "all")
    return 1


def writes_result() -> None:
    assert current().write_result_sync(b"written") == 7


async def writes_result_on_loop() -> None:
    assert await current().write_result(b"written") == 7


def _follow_up_id() -> str:
    return f"after-{current().id}"


def sends_sync() -> None:
    app.enqueue_sync("follow-up", {"n": 1}, queue=FOLLOW_UPS, task_id=_follow_up_id())


async def sends_on_loop() -> None:
    await app.enqueue("follow-up", {"n": 1}, queue=FOLLOW_UPS, task_id=_follow_up_id())


def sends_async() -> None:
    """Without an event loop of the worker's, it takes one of its own."""

    async def send() -> None:
        await sends_on_loop()
        await app.close()

    asyncio.run(send())


def looks_at_current() -> None:
    here = current()
    left = here.deadline.timestamp() - time.time()
    seen = {name: getattr(here, name) for name in ("id", "queue", "type", "attempt", "max_retry", "cancelled")}
    note("seen", seen={**seen, "headers": dict(here.headers), "has its time": 20 < left < 31})


def uses_state() -> str:
    return str(app.state["shelf"])


def _in_a_fork(body: Callable[[], None]) -> str:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # one that hangs is seen by its exit code
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"
    return "forked"


def forks() -> str:
    return _in_a_fork(lambda: None)


def forks_and_sends() -> str:
    """Both use the app: the child must not read from its parent's connections, nor the parent miss a reply."""
    app.enqueue_sync("follow-up", {"n": 0}, queue=FOLLOW_UPS, task_id=f"{_follow_up_id()}-parent")
    return _in_a_fork(sends_sync)


def forks_and_returns() -> str:
    child = os.fork()
    if child == 0:
        return "from the fork"
    os.waitpid(child, 0)
    return "from the handler"


def kills_its_process() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def leaves_its_process() -> NoReturn:
    os._exit(3)


def holds_the_gil() -> str:
    """For longer than the lease of the worker that runs it."""
    ctypes.PyDLL(None).usleep(5_000_000)
    return "held"


def _is_stopping() -> bool:
    return Path(os.environ["HANDLER_NOTES"]).with_name("stopping").exists()


def ends_after_the_signal() -> str:
    until_sync(_is_stopping)
    return "ended in time"


async def ends_after_the_signal_on_loop() -> str:
    await until(_is_stopping)
    return "ended in time"


def works_too_long() -> None:
    """Cannot be told to end; where it runs in a thread, it is left behind."""
    pause_sync(LONG, proves="nobody waits for it")
