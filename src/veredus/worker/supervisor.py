"""Runs worker processes: one in the foreground, or several under a supervisor that replaces those that die."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import ConfigError, ConnectionLost, StoreError, VeredusError
from veredus.events import Bus
from veredus.store.store import Store
from veredus.store.work import Work
from veredus.wire import holding
from veredus.worker.complaints import Complaints
from veredus.worker.insistence import Insistence
from veredus.worker.mux import Mux
from veredus.worker.parentage import end_with_parent
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.worker import EXIT_HUNG, EXIT_RECYCLE, Worker

logger = logging.getLogger("veredus.supervisor")

EXIT_CONFIG = 2
EXIT_NO_REDIS = 3
SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_WISH = 0.5
"""Seconds within which a second signal to a supervised child is taken for the same wish, not for impatience."""
KILL_AFTER = 10.0
"""Seconds that a process may take beyond the shutdown timeout, before it is ended by force."""
ABORT_AFTER = 5.0
"""Seconds that it has after a second signal."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_worker(worker: Worker) -> int:
    """One worker in this process, with signals."""

    insistence = Insistence(EXIT_HUNG)
    wishes = 0

    async def main() -> int:
        loop = asyncio.get_running_loop()
        await worker.start()
        # What was loaded stays: without it, each full garbage collection would stop the loop for some 10 ms.
        gc.collect()
        gc.freeze()
        heard = -SAME_WISH

        def told(number: int, frame: Any) -> None:
            """Runs even while a handler blocks the loop; once for patience, twice for none."""
            nonlocal wishes
            wishes += 1
            if not worker.supervised:  # a supervisor has a clock of its own
                insistence.arm(worker.config.shutdown_timeout + KILL_AFTER if wishes == 1 else ABORT_AFTER)
            loop.call_soon_threadsafe(stop_wanted)

        def stop_wanted() -> None:
            nonlocal heard
            now = time.monotonic()
            if worker.supervised and now - heard < SAME_WISH:
                return  # one wish that came twice: systemd tells every process, and the supervisor passes it on
            heard = now
            worker.request_stop()

        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in SIGNALS:
                if not (worker.supervised and number == signal.SIGINT):
                    signal.signal(number, told)
            loop.add_signal_handler(signal.SIGTSTP, worker.quiet)
        try:
            await worker.wait()
        finally:
            await worker.stop()
        return worker.exit_code

    runner = asyncio.Runner(loop_factory=loop_factory())
    try:
        return runner.run(main())
    finally:
        insistence.call_off()
        _close(runner)


def _close(runner: asyncio.Runner) -> None:
    """Closing waits for every task; a handler that ignores being cancelled is left behind: its task was given back."""
    loop = runner.get_loop()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    if left:
        logger.warning("%d handlers that ignore being cancelled are left behind", len(left))
    else:
        runner.close()


@dataclass(slots=True)
class _Child:
    worker_id: str
    started_at: float
    failures: int = 0
    """How often in a row it and those it replaces have died as soon as they started."""


def run_supervised(worker: Worker) -> int:
    """Several workers, each in a process of its own."""
    return Supervisor(worker).run()


class Supervisor:
    """Forks the children, waits for them, replaces the dead and gives their tasks back at once."""

    def __init__(self, worker: Worker) -> None:
        self._app = worker.app
        self._config = worker.config
        self._children: dict[int, _Child] = {}
        self._stopping = False
        self._due: list[tuple[float, int]] = []
        """When children that died are to be replaced, on the monotonic clock, and how often they failed in a row."""

    def run(self) -> int:
        asyncio.run(self._reach_redis())  # once, in the parent: children that cannot start would only be restarted
        for number in (*SIGNALS, signal.SIGTSTP):
            signal.signal(number, self._forward)
        signal.signal(signal.SIGALRM, self._kill_the_rest)
        logger.info("supervisor %d starts %d worker processes", os.getpid(), self._config.processes)
        for _ in range(self._config.processes):
            self._spawn()
        exit_code = 0
        while self._children or (self._due and not self._stopping):
            pid, status = self._next_end()
            child = self._children.pop(pid, None)
            if child is not None:
                exit_code = max(exit_code, self._ended(pid, child, os.waitstatus_to_exitcode(status)))
        return exit_code

    async def _reach_redis(self) -> None:
        redis = self._app.open_redis("veredus-supervisor")
        try:
            await redis.command("PING", key="")
        finally:
            await redis.close()

    def _forward(self, number: int, frame: Any) -> None:
        if number in SIGNALS and not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self._config.shutdown_timeout + KILL_AFTER)
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if number in SIGNALS else number)

    def _next_end(self) -> tuple[int, int]:
        """Wait for the end of a child; while one is to be replaced, only look, so that no other end is overlooked."""
        if not self._due or self._stopping:
            return os.waitpid(-1, 0)
        ended = os.waitpid(-1, os.WNOHANG) if self._children else (0, 0)
        if not ended[0]:
            now = time.monotonic()
            ripe = [failures for at, failures in self._due if at <= now]
            self._due = [(at, failures) for at, failures in self._due if at > now]
            for failures in ripe:
                self._spawn(failures)
            time.sleep(0.02)
        return ended

    def _kill_the_rest(self, number: int, frame: Any) -> None:
        """A child whose event loop hangs hears no SIGTERM: its time is up, its tasks are given back."""
        for pid in list(self._children):
            logger.error("worker process %d does not stop: it is killed", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _spawn(self, failures: int = 0) -> None:
        worker_id = str(uuid.uuid4())
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals wait until the child is on record: one that comes in between must reach it too.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _live_as_child(Worker(self._app, self._config, worker_id=worker_id, supervised=True), parent)
        self._children[pid] = _Child(worker_id, time.monotonic(), failures)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self._stopping:
            os.kill(pid, signal.SIGTERM)

    def _ended(self, pid: int, child: _Child, code: int) -> int:
        """What follows from a child's end; returns what it adds to the exit code."""
        if code == EXIT_RECYCLE:
            if not self._stopping:
                self._spawn()
            return 0
        if code == 0:
            return 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        logger.error("worker process %d ended with %s", pid, how)
        was_stopping = self._stopping  # a stop that is asked for while its tasks are given back was not disturbed by it
        self._give_back(child)
        if was_stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code == EXIT_CONFIG:
            return code
        failures = failures_in_a_row(child.failures, time.monotonic() - child.started_at)
        self._due.append((time.monotonic() + pause_before_next(failures), failures))
        return 0

    def _give_back(self, child: _Child) -> None:
        try:
            count = asyncio.run(give_back(self._app, self._config, child.worker_id))
        except VeredusError as exc:
            logger.warning("its tasks will be recovered when their leases run out: %s", exc)
        else:
            if count:
                logger.warning("%d tasks that it had in hand were given back", count)


def failures_in_a_row(before: int, lived: float) -> int:
    """Only a child that dies as soon as it starts is suspect."""
    return 0 if lived > 5.0 else before + 1


def pause_before_next(failures: int) -> float:
    """Seconds before a child is replaced: such a child is not restarted in a circle. The others do not wait for it."""
    return min(0.1 * 2.0**failures, 10.0) if failures else 0.0


async def give_back(app: Any, config: Any, dead_worker: str) -> int:
    """Recover what a dead worker held, without waiting for its leases to run out."""
    store = Store(app.open_redis("veredus-supervisor"), archive=app.archive)
    clock = ServerClock()
    recoverer = Recoverer(
        store,
        Work(store.redis, dead_worker, lease_ms=config.lease_ms, archive=store.archive),
        str(uuid.uuid4()),
        config,
        Mux(app.tasks, app.patterns, ()),
        clock,
        Complaints(),
        Bus(),
    )
    total = 0
    try:
        before = time.time()
        clock.observe(await store.server_time_ms() / 1000, before, time.time())
        while (count := await recoverer.give_back(holding.owner(dead_worker, ""))) > 0:
            total += count
    finally:
        await store.close()
    return total


def _live_as_child(worker: Worker, parent: int) -> None:
    """Never returns."""
    code = 1
    try:
        end_with_parent(parent, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor passes it on
        for number in (signal.SIGTERM, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = run_worker(worker)
    except ConfigError as exc:
        logger.error("%s", exc)
        code = EXIT_CONFIG
    except (ConnectionLost, StoreError) as exc:
        logger.error("%s", exc)
        code = EXIT_NO_REDIS
    except BaseException:
        logger.exception("worker process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
