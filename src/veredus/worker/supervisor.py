"""Runs workers: one in this process, or several processes under a supervisor that replaces those that die."""

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
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import VeredusError
from veredus.events import Bus
from veredus.handlers.mux import Mux
from veredus.process.hard_exit import HardExit
from veredus.process.outage_log import OutageLog
from veredus.process.signals import StopSignals, done_unless, stop_signals
from veredus.process.supervisor import (
    EXIT_CONFIG,
    KILL_AFTER,
    SAME_REQUEST,
    SupervisedProcess,
    Supervisor,
    how_it_ended,
    loop_factory,
)
from veredus.store.store import Store
from veredus.store.tasks.stats import Stats
from veredus.store.tasks.work import Work
from veredus.wire import lease_owner
from veredus.worker.attempt_records import AttemptRecords
from veredus.worker.lease_keeper import is_stopped, keep_leases
from veredus.worker.roles.recorder import Recorder
from veredus.worker.roles.recoverer import Recoverer
from veredus.worker.shared_beat import Beat, SharedBeat
from veredus.worker.type_counts import TypeCounts
from veredus.worker.worker import EXIT_HUNG, EXIT_RECYCLE, Worker

logger = logging.getLogger("veredus.supervisor")

SHOWN = 5
"""Tasks named in one log line."""
ABORT_AFTER = 5.0
"""Seconds before a hard exit after a second signal."""


def run_worker(worker: Worker) -> int:
    """Run one worker in this process. SIGTERM and SIGINT stop it; a second signal gives its tasks back at once."""

    hard_exit = HardExit(EXIT_HUNG)
    requests = 0

    async def main(signals: StopSignals) -> int:
        loop = asyncio.get_running_loop()
        wanted = asyncio.Event()
        last_request = -math.inf

        def on_signal() -> None:
            """Runs even while a handler blocks the loop."""
            nonlocal requests
            requests += 1
            if not worker.supervised:  # a supervisor kills its children itself
                hard_exit.arm(worker.config.shutdown_timeout + KILL_AFTER if requests == 1 else ABORT_AFTER)
            loop.call_soon_threadsafe(request_stop)

        def request_stop() -> None:
            nonlocal last_request
            now = time.monotonic()
            if worker.supervised and now - last_request < SAME_REQUEST:
                return  # one request that arrived twice: systemd signals every process, and the supervisor forwards it
            last_request = now
            wanted.set()
            worker.request_stop()

        signals.notify(on_signal)
        try:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(signal.SIGTSTP, worker.quiet)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
            if not await done_unless(wanted, worker.start()):
                return 0
            # Loaded modules stay: without this, each full garbage collection would pause the loop for some 10 ms.
            gc.collect()
            gc.freeze()
            try:
                await worker.wait()
            finally:
                await worker.stop()
            if worker.supervised and worker.left_behind:
                # A handler still runs here, and its task may be retried from now on: exit at once.
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
            hard_exit.cancel()
            _close(runner, patience=0.0 if worker.left_behind else 1.0)


def _close(runner: asyncio.Runner, patience: float) -> None:
    """Close the loop, unless a handler ignores its cancellation: closing would wait for it. Its task is settled."""
    loop = runner.get_loop()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=patience))
    if left:
        logger.warning("%d handlers ignore their cancellation and are abandoned", len(left))
    else:
        runner.close()


def run_supervised(worker: Worker) -> int:
    """Run several workers, each in its own process."""
    return WorkerSupervisor(worker).run()


class WorkerSupervisor(Supervisor):
    """Gives back the tasks of a dead worker at once, and renews the leases of one that is frozen."""

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
        """Children that do not run, with the latest deadline of their tasks."""
        self._check_at = 0.0
        for companion in worker.config.companions:
            listen = getattr(companion, "listen_to_supervisor", None)
            if listen is not None:
                listen(self._bus)

    def live(self, child: SupervisedProcess) -> int:
        return run_worker(Worker(self._app, self._config, worker_id=child.name, shared=self._beats[child.name]))

    def _spawn(self, child: SupervisedProcess) -> None:
        self._beats[child.name] = SharedBeat(self._config.concurrency)
        super()._spawn(child)
        if not child.pid:  # it could not be started
            self._beats.pop(child.name).close()

    def check_children(self) -> float:
        """Replace children that are draining, and renew the leases of those that are frozen."""
        now, interval = time.monotonic(), self._config.lease / 6
        if now < self._check_at:
            return self._check_at - now
        self._check_at = now + interval
        for child in list(self._children.values()):
            beat = self._beats[child.name].read()
            if beat.is_draining and not child.is_replaced and not self._stopping:
                child.is_replaced = True
                self._spawn(SupervisedProcess(child.index, str(uuid.uuid4())))
            if beat.at and now - beat.at > self._config.lease / 2:
                self._keep(child, beat, now - beat.at)
            elif child.name in self._frozen:
                del self._frozen[child.name]
                logger.warning("worker process %d runs again", child.pid)
        return interval

    def _keep(self, child: SupervisedProcess, beat: Beat, seconds: float) -> None:
        """A frozen child is alive, so no other worker may run its tasks before their deadlines. After the last deadline
        it counts as hung and is killed."""
        if is_stopped(child.pid):
            return
        until = self._frozen.get(child.name)
        if until is not None and until <= time.monotonic():
            logger.critical("worker process %d is frozen after the deadlines of all its tasks and is killed", child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            return
        try:
            kept = asyncio.run(keep_leases(self._app, self._config, self._queues, child.name, beat))
        except Exception as exc:  # no failure may end the other children
            known = isinstance(exc, VeredusError | TimeoutError)
            logger.warning(
                "worker process %d is frozen, and its leases cannot be renewed: %s",
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
                "worker process %d has been frozen for %.1f s, as when C code holds the GIL: its supervisor renews the"
                " leases of its %d tasks until their deadlines: %s",
                child.pid,
                seconds,
                len(kept.tasks),
                ", ".join(kept.tasks[:SHOWN]),
            )

    def patience(self) -> float:
        return self._config.shutdown_timeout + KILL_AFTER

    def check_first(self, signals: StopSignals) -> None:
        """Check in the parent that Redis can be reached: otherwise the children would be restarted over and over."""

        async def reach() -> None:
            loop, wanted = asyncio.get_running_loop(), asyncio.Event()

            def on_signal() -> None:
                self._stopping = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: Redis has answered
                    loop.call_soon_threadsafe(wanted.set)

            signals.notify(on_signal)
            redis = self._app.open_redis("veredus-supervisor")
            try:
                await done_unless(wanted, redis.command("PING", key=""))
            finally:
                await redis.close()

        asyncio.run(reach())

    def ended(self, child: SupervisedProcess, code: int) -> int:
        self._beats.pop(child.name, None)
        self._frozen.pop(child.name, None)
        if code == EXIT_RECYCLE:
            if not self._stopping and not child.is_replaced:
                self._spawn(SupervisedProcess(child.index, str(uuid.uuid4())))
            return 0
        if code == 0:
            return 0
        self.log_exit(child, code)
        was_stopping = self._stopping  # a stop requested during the next call is not disturbed by this exit
        self._give_back(child, how_it_ended(code))
        if was_stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code == EXIT_CONFIG:
            return code
        self.replace(child)
        return 0

    def _give_back(self, child: SupervisedProcess, how: str) -> None:
        why = f"its worker process {child.pid} ended with {how}"
        try:
            count = asyncio.run(give_back(self._app, self._config, child.name, self._bus, why))
        except Exception as exc:  # no failure may end the other children
            known = isinstance(exc, VeredusError)
            logger.warning(
                "its tasks will be recovered when their leases expire: %s", exc, exc_info=None if known else exc
            )
        else:
            if count:
                logger.warning("%d tasks of it were given back", count)


async def give_back(app: Any, config: Any, dead_worker: str, bus: Bus, why: str) -> int:
    """Recover the tasks of a dead worker before its leases expire; `why` goes into the records of their attempts. Emits
    events on `bus`."""
    store = Store(app.open_redis("veredus-supervisor"), archive=app.archive)
    clock, counts = ServerClock(), TypeCounts()
    recoverer = Recoverer(
        store,
        Work(store.redis, dead_worker, lease_ms=config.lease_ms, archive=store.archive),
        str(uuid.uuid4()),
        config,
        Mux(app.tasks, app.patterns, ()),
        clock,
        OutageLog(),
        bus,
        records=AttemptRecords(dead_worker, redact=app.redact, counts=counts, why_lost=why),
    )
    total = 0
    try:
        await store.set_clock(clock)
        while (count := await recoverer.give_back(lease_owner.owner(dead_worker, ""))) > 0:
            total += count
        await Recorder(Stats(store.redis), str(uuid.uuid4()), counts, OutageLog()).step()
    finally:
        await store.close()
    return total
