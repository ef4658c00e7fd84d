"""Runs worker processes: one in the foreground, or several under a supervisor that replaces those that die."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import VeredusError
from veredus.events import Bus
from veredus.signals import StopSignals, done_unless, stop_signals
from veredus.store.store import Store
from veredus.store.work import Work
from veredus.wire import holding
from veredus.worker.complaints import Complaints
from veredus.worker.family import EXIT_CONFIG, Child, Family
from veredus.worker.insistence import Insistence
from veredus.worker.keeping import is_stopped, keep_leases
from veredus.worker.mux import Mux
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.shared_beat import Beat, SharedBeat
from veredus.worker.worker import EXIT_HUNG, EXIT_RECYCLE, Worker

logger = logging.getLogger("veredus.supervisor")

SAME_WISH = 0.5
"""Seconds within which a second signal to a supervised child is taken for the same wish, not for impatience."""
KILL_AFTER = 10.0
"""Seconds that a process may take beyond the shutdown timeout, before it is ended by force."""
SHOWN = 5
"""Tasks that a line of the log names."""
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

    async def main(signals: StopSignals) -> int:
        loop = asyncio.get_running_loop()
        wanted = asyncio.Event()
        heard = -math.inf

        def told() -> None:
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
            wanted.set()
            worker.request_stop()

        signals.tell(told)
        try:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(signal.SIGTSTP, worker.quiet)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
            if not await done_unless(wanted, worker.start()):
                return 0
            # What was loaded stays: without it, each full garbage collection would stop the loop for some 10 ms.
            gc.collect()
            gc.freeze()
            try:
                await worker.wait()
            finally:
                await worker.stop()
            if worker.supervised and worker.left_behind:
                # A handler still runs here, and its task may be retried from now on: nothing else is waited for.
                logging.shutdown()
                os._exit(worker.exit_code)
            return worker.exit_code
        finally:
            signals.ignore()
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(signal.SIGTSTP)

    with stop_signals() as signals:
        runner = asyncio.Runner(loop_factory=loop_factory())
        try:
            return runner.run(main(signals))
        finally:
            insistence.call_off()
            _close(runner, patience=0.0 if worker.left_behind else 1.0)


def _close(runner: asyncio.Runner, patience: float) -> None:
    """Closing waits for every task; a handler that ignores being cancelled is left behind: its task was settled."""
    loop = runner.get_loop()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=patience))
    if left:
        logger.warning("%d handlers that ignore being cancelled are left behind", len(left))
    else:
        runner.close()


def run_supervised(worker: Worker) -> int:
    """Several workers, each in a process of its own."""
    return Supervisor(worker).run()


class Supervisor(Family):
    """Workers; the tasks of one that died are given back at once."""

    kind = "worker"
    passes_on = (signal.SIGTSTP,)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.config.processes)
        self._app = worker.app
        self._config = worker.config
        self._queues = list(worker.queues)
        self._bus = worker.bus
        self._beats: dict[str, SharedBeat] = {}
        self._frozen: dict[str, float] = {}
        """Children that stand still, and when the last of their tasks has no time left."""
        self._look_at = 0.0
        for companion in worker.config.companions:
            listen = getattr(companion, "listen_to_supervisor", None)
            if listen is not None:
                listen(self._bus)

    def live(self, child: Child) -> int:
        return run_worker(Worker(self._app, self._config, worker_id=child.name, shared=self._beats[child.name]))

    def _spawn(self, child: Child) -> None:
        self._beats[child.name] = SharedBeat(self._config.concurrency)
        super()._spawn(child)
        if not child.pid:  # it could not be started
            self._beats.pop(child.name).close()

    def tend(self) -> float:
        """Replace children that only finish what they have, and keep the leases of those that stand still."""
        now, interval = time.monotonic(), self._config.lease / 6
        if now < self._look_at:
            return self._look_at - now
        self._look_at = now + interval
        for child in list(self._children.values()):
            beat = self._beats[child.name].read()
            if beat.is_draining and not child.is_replaced and not self._stopping:
                child.is_replaced = True
                self._spawn(Child(child.index, str(uuid.uuid4())))
            if beat.at and now - beat.at > self._config.lease / 2:
                self._keep(child, beat, now - beat.at)
            elif child.name in self._frozen:
                del self._frozen[child.name]
                logger.warning("worker process %d moves again", child.pid)
        return interval

    def _keep(self, child: Child, beat: Beat, seconds: float) -> None:
        """A child that stands still is alive, so its tasks are not to be run elsewhere while they have time. When none
        of them has any left, it hangs."""
        if is_stopped(child.pid):
            return
        until = self._frozen.get(child.name)
        if until is not None and until <= time.monotonic():
            logger.critical("worker process %d stands still after the deadlines of all its tasks: killed", child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            return
        try:
            kept = asyncio.run(keep_leases(self._app, self._config, self._queues, child.name, beat))
        except Exception as exc:  # whatever it is, the other children are not to end with it
            known = isinstance(exc, VeredusError | TimeoutError)
            logger.warning(
                "worker process %d stands still; its leases cannot be renewed: %s",
                child.pid,
                exc,
                exc_info=None if known else exc,
            )
            return
        if not kept.tasks:
            return
        self._frozen[child.name] = max(kept.until, until or kept.until)
        if until is None:
            logger.warning(
                "worker process %d has stood still for %.1f s, as when C code holds the GIL: its supervisor renews the"
                " leases of its %d tasks until their deadlines: %s",
                child.pid,
                seconds,
                len(kept.tasks),
                ", ".join(kept.tasks[:SHOWN]),
            )

    def patience(self) -> float:
        return self._config.shutdown_timeout + KILL_AFTER

    def look_first(self, signals: StopSignals) -> None:
        """Redis is asked once, in the parent: children that cannot start would only be restarted."""

        async def reach() -> None:
            loop, wanted = asyncio.get_running_loop(), asyncio.Event()

            def told() -> None:
                self._stopping = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: Redis has answered
                    loop.call_soon_threadsafe(wanted.set)

            signals.tell(told)
            redis = self._app.open_redis("veredus-supervisor")
            try:
                await done_unless(wanted, redis.command("PING", key=""))
            finally:
                await redis.close()

        asyncio.run(reach())

    def ended(self, child: Child, code: int) -> int:
        self._beats.pop(child.name, None)
        self._frozen.pop(child.name, None)
        if code == EXIT_RECYCLE:
            if not self._stopping and not child.is_replaced:
                self._spawn(Child(child.index, str(uuid.uuid4())))
            return 0
        if code == 0:
            return 0
        self.complain(child, code)
        was_stopping = self._stopping  # a stop that is asked for while its tasks are given back was not disturbed by it
        self._give_back(child)
        if was_stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code == EXIT_CONFIG:
            return code
        self.replace(child)
        return 0

    def _give_back(self, child: Child) -> None:
        try:
            count = asyncio.run(give_back(self._app, self._config, child.name, self._bus))
        except Exception as exc:  # whatever it is, the other children are not to end with it
            known = isinstance(exc, VeredusError)
            logger.warning(
                "its tasks will be recovered when their leases run out: %s", exc, exc_info=None if known else exc
            )
        else:
            if count:
                logger.warning("%d tasks that it had in hand were given back", count)


async def give_back(app: Any, config: Any, dead_worker: str, bus: Bus) -> int:
    """Recover what a dead worker held, without waiting for its leases to run out; told on `bus`."""
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
        bus,
    )
    total = 0
    try:
        await store.set_clock(clock)
        while (count := await recoverer.give_back(holding.owner(dead_worker, ""))) > 0:
            total += count
    finally:
        await store.close()
    return total
