"""Heartbeater: keeps leases and shows that the worker lives, from a thread of its own.

A handler that blocks the event loop does not block this thread, so its task is not taken for dead; until its deadline
and a little more have passed, for then it hangs, and the lease is left to run out. A handler in a thread, or one that
ignores being cancelled, cannot be stopped either; but it does not keep the process from its work, so its task stays its
own until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import StoreError
from veredus.model.message import deadline_of
from veredus.model.settlement import Requeue, Settlement
from veredus.model.verdict import End
from veredus.restarts import Restarts
from veredus.store.leases import Holding
from veredus.store.redis import Redis
from veredus.store.store import Store
from veredus.store.work import Work
from veredus.wire.presence import ServerRecord, encode_worker
from veredus.worker.complaints import Complaints
from veredus.worker.config import WorkerConfig
from veredus.worker.hands import Attempt, Hands
from veredus.worker.loop_watch import LoopWatch
from veredus.worker.shared_beat import SharedBeat, entry_of

logger = logging.getLogger("veredus.worker")

GIVE_BACK = 2.0
"""Seconds for giving tasks back before the process ends."""


class Heartbeater:
    """Its own thread, event loop and connection. Touches nothing of the worker's loop but through it."""

    def __init__(
        self,
        open_redis: Callable[[], Redis],
        config: WorkerConfig,
        hands: Hands,
        clock: ServerClock,
        describe: Callable[[], ServerRecord],
        on_overrun: Callable[[Attempt], None],
        on_hung: Callable[[str], None],
        complaints: Complaints,
        restarts: Restarts,
        shared: SharedBeat | None = None,
    ) -> None:
        self._open_redis = open_redis
        self._config = config
        self._hands = hands
        self._clock = clock
        self._describe = describe
        self._on_overrun = on_overrun
        self._on_hung = on_hung
        self._complaints = complaints
        self._restarts = restarts
        self._shared = shared
        self._worker_loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._worker_loop, config.deadline_grace)
        self.beaten_at = time.monotonic()
        """When a beat last reached the server, on the monotonic clock."""
        self._steady_since = math.inf
        self._overrun: set[Attempt] = set()
        """Those that were told of already."""
        self._blocked_told = False
        self.hangs = ""
        """Set while a handler blocks the loop past its deadline: what is known of it."""
        self._stopping = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._live, name="veredus-heartbeater", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """The last role to stop: the record is removed when nothing is in hand any more."""
        self._stopping.set()
        if self._thread.ident is None:
            return  # it was never started
        self._wake()
        await asyncio.to_thread(self._thread.join, 5.0)

    def _live(self) -> None:
        """The thread ends only when the worker stops. After a failure it begins anew with another loop and another
        connection, soon enough for the leases: at once, or one beat later at most."""
        while not self._stopping.is_set():
            try:
                asyncio.run(self._beat_on())
                error = None
            except BaseException as exc:
                error = exc
            if not self._stopping.is_set():
                self._stopping.wait(self._restarts.ended("heartbeater", error, longest=self._config.beat))

    async def _beat_on(self) -> None:
        store = Store(self._open_redis())
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # this loop has ended
                loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        showing = None if self._shared is None else asyncio.create_task(self._show_life(self._shared))
        if showing is not None:
            showing.add_done_callback(lambda _: woken.set())
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                if showing is not None and showing.done():
                    await showing  # raises: both are begun anew
                try:
                    await self.beat(store)
                    self._beaten(time.monotonic())
                    self._complaints.recovered("heartbeat")
                    # A beat that took long (a server that stood still) is followed by the next one at once.
                    pause = max(0.0, self._config.beat - (time.monotonic() - began))
                except StoreError as exc:
                    self._complaints.error("heartbeat", "the heartbeat failed", exc)
                    pause = min(self._config.beat, 0.5)
                pause = min(pause, self.look(time.monotonic()))
                if self.hangs and self._shared is not None:
                    await self.give_back_others(store)
                    self._on_hung(self.hangs)
                try:
                    async with asyncio.timeout(pause):
                        await woken.wait()
                except TimeoutError:
                    pass
            try:
                await store.presence.leave(self._describe())
            except StoreError:
                pass  # the record expires by itself
        finally:
            if showing is not None:
                showing.cancel()
            await store.close()

    @property
    def steady_since(self) -> float:
        """Since when every beat was in time; infinity if the last one was not, or none has come since."""
        return self._steady_since if time.monotonic() - self.beaten_at <= self._longest_gap else math.inf

    def _beaten(self, now: float) -> None:
        if now - self.beaten_at > self._longest_gap or self._steady_since == math.inf:
            self._steady_since = now
        self.beaten_at = now

    @property
    def _longest_gap(self) -> float:
        """Between two beats, if neither this process nor the server stands still."""
        return self._config.beat * 1.5

    async def _show_life(self, shared: SharedBeat) -> None:
        """The supervisor sees whether this process moves, also while Redis does not answer."""
        while True:
            running = [attempt for attempt in self._hands.held() if attempt.running]
            entries = [(entry_of(one.queue, one.task_id), one.lease.latest) for one in running]
            shared.publish(time.monotonic(), entries)
            await asyncio.sleep(self._config.beat / 2)

    async def give_back_others(self, store: Store) -> None:
        """This process ends because of one handler: the tasks of all others that still had time are given back, as at a
        stop, and no attempt of theirs is counted. What cannot be given back is recovered."""
        now, held = time.monotonic(), self._hands.held()
        blocker = self._watch.blocker(held)
        others: dict[str, list[Settlement]] = {}
        for one in held:
            if one.running and one is not blocker and not one.lease.is_overrun(now):
                others.setdefault(one.queue, []).append(Requeue(one.task_id, one.owner))
        try:
            async with asyncio.timeout(GIVE_BACK):
                await Work(store.redis, "", lease_ms=self._config.lease_ms).settle_each(list(others.items()))
        except (StoreError, TimeoutError) as exc:
            logger.warning("its other tasks are not given back, but recovered: %s", exc)

    async def beat(self, store: Store) -> None:
        """Leases first: they are what must not be late."""
        now = time.monotonic()
        held = self._hands.held()
        failure = await self._extend(store, held, now)
        record = self._describe()
        working = {
            attempt.task_id: encode_worker(
                record.host,
                record.pid,
                record.server_id,
                attempt.message,
                attempt.started_at,
                attempt.deadline or deadline_of(attempt.message, attempt.started_at),
            )
            for attempt in held
            if attempt.running
        }
        before = time.monotonic()
        server_ms = await store.presence.beat(record, working)
        self._clock.observe(server_ms / 1000 + 0.0005, before, time.monotonic())
        if failure is not None:
            raise failure

    async def _extend(self, store: Store, held: list[Attempt], now: float) -> StoreError | None:
        """Returns the failure of a queue that could not be reached, after the others have been taken care of."""
        holdings: dict[str, list[Holding]] = {}
        attempts: dict[tuple[str, str, str], tuple[Attempt, float]] = {}
        silent, hung = self._watch.silence(now) > 0, self._hangs(held, now)
        blocker = self._watch.blocker(held) if silent else None
        self._watch.ask(now)
        for attempt in held:
            on_loop = attempt.where == "loop"
            bounded = self._config.retry_while_running or (silent and on_loop and blocker in (attempt, None))
            seconds = attempt.lease.renewal(now, self._config.lease, bounded=attempt.running and bounded)
            if seconds <= 0 or (hung and on_loop):
                continue
            holding = Holding(attempt.task_id, attempt.owner, round(seconds * 1000))
            holdings.setdefault(attempt.queue, []).append(holding)
            attempts[(attempt.queue, attempt.task_id, attempt.owner)] = (attempt, now + seconds)
        failure: StoreError | None = None
        if not holdings:
            return None
        for queue, extension in (await store.leases.extend(holdings)).items():
            if isinstance(extension, StoreError):
                failure = extension
                continue
            gone = {(holding.task_id, holding.owner) for holding in extension.lost}
            for holding, then in extension.cancels:
                # Whoever cancelled it also told this worker; the message may have been lost.
                self._tell(attempts[(queue, holding.task_id, holding.owner)][0].cancel, then)
            for holding in holdings[queue]:
                attempt, until = attempts[(queue, holding.task_id, holding.owner)]
                if (holding.task_id, holding.owner) in gone:
                    self._lose(attempt)
                else:
                    attempt.lease.renew(until)
        return failure

    def look(self, now: float) -> float:
        """Tell of handlers that overran their time and of a loop that is blocked, each once. Returns in how many
        seconds to look again; infinity if the next beat is soon enough."""
        held = self._hands.held()
        self._overrun.intersection_update(held)
        overrun = [attempt for attempt in held if attempt.running and attempt.lease.is_overrun(now)]
        silence = self._watch.silence(now)
        if not silence:
            self._blocked_told, self.hangs = False, ""
            for attempt in overrun:
                self._note_overrun(attempt)
            return math.inf
        if silence < self._watch.patience:  # it may only be busy
            return self._watch.patience - silence if overrun else math.inf
        blocker = self._watch.blocker(held)
        who = "no task" if blocker is None else f"task {blocker.task_id} ({blocker.kind})"
        what = f"the event loop has been blocked for {silence:.1f} s by {who}, at {self._watch.place()}"
        if not self._blocked_told:
            self._blocked_told = True
            logger.warning("%s", what)
        if self._hangs(held, now) and not self.hangs:
            self.hangs = what
            logger.error("%s: its deadline has passed, the leases of handlers on the loop are no longer renewed", what)
        return math.inf

    def _note_overrun(self, attempt: Attempt) -> None:
        if attempt in self._overrun:
            return
        self._overrun.add(attempt)
        logger.error(
            "task %s (%s) runs on after its deadline, %s: %s",
            attempt.task_id,
            attempt.kind,
            "in a thread, which cannot be stopped" if attempt.where == "thread" else "though it was cancelled",
            "its lease is no longer renewed, it may be retried while it runs"
            if self._config.retry_while_running
            else "it keeps its slot and its lease until it ends",
        )
        self._tell(self._on_overrun, attempt)

    def _hangs(self, held: list[Attempt], now: float) -> bool:
        """A handler that blocks the loop past its own deadline holds up all others: let other workers have them. One
        that blocks it within its time is only waited for."""
        if not self._watch.is_blocked(now):
            return False
        blocker = self._watch.blocker(held)
        suspects = [one for one in held if one.running and one.where == "loop"] if blocker is None else [blocker]
        return any(suspect.lease.is_overrun(now) for suspect in suspects)

    def _lose(self, attempt: Attempt) -> None:
        if not attempt.running:
            return  # it was settled while we asked
        attempt.lease.lose()
        self._tell(attempt.force, End.LEASE_LOST)

    def _tell(self, what: Callable[[Any], None], value: Any) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(what, value)
        except RuntimeError:
            pass  # the worker's loop has ended
