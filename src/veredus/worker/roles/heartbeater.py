"""Heartbeater: renews leases and refreshes the worker's record, from its own thread.

A handler that blocks the event loop does not block this thread, so its lease is renewed. Once its deadline and grace
have passed, the loop counts as hung, and the leases of its handlers are left to expire. A handler in a thread, or one
that ignores its cancellation, cannot be stopped either, but does not block the others: it keeps its lease until it
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from veredus.clock import ServerClock
from veredus.errors import StoreError
from veredus.model.message import TaskMessage, deadline_of
from veredus.model.settlement import Requeue, Settlement
from veredus.model.verdict import End
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.connection.redis import Redis
from veredus.store.store import Store
from veredus.store.tasks.leases import Holding
from veredus.store.tasks.work import Work
from veredus.wire.presence import ServerRecord, encode_worker
from veredus.worker.attempt import Attempt, InFlight
from veredus.worker.config import WorkerConfig
from veredus.worker.liveness import LivenessHooks, LivenessKeeper
from veredus.worker.loop_watch import LoopWatch
from veredus.worker.shared_beat import SharedBeat, entry_of

logger = logging.getLogger("veredus.worker")
T = TypeVar("T")

SIGN_OF_LIFE = 0.5
"""Seconds between two beats of a worker whose connections do not show that it lives."""
GIVE_BACK = 2.0
"""Seconds for giving tasks back before the process ends."""


class HeartbeatHooks(NamedTuple):
    """What the heartbeater calls of its worker."""

    describe: Callable[[], ServerRecord]
    on_overrun: Callable[[Attempt], None]
    """A handler runs on after its deadline and grace. Called on the worker's loop."""
    on_hung: Callable[[str], None]
    """The worker's loop hangs. Called in the heartbeater's thread."""
    on_asked: Callable[[str], None]
    """This process is asked for `quiet` or `stop`; repeated at each heartbeat. Called on the worker's loop."""
    shown_payload: Callable[[TaskMessage], bytes] = lambda message: message.payload
    """What the list of running tasks shows of a payload. Called in the heartbeater's thread."""
    on_dead: Callable[[str], None] = lambda worker_id: None
    """Another worker has died. Called on the worker's loop at each look, until its tasks are recovered."""
    on_misjudged: Callable[[int], None] = lambda leases: None
    """This many leases of this worker were taken because it looked dead. Called on the worker's loop."""


class Heartbeater:
    """Has its own thread, event loop and connection. Reaches the worker only through its loop."""

    def __init__(
        self,
        open_redis: Callable[[], Redis],
        config: WorkerConfig,
        in_flight: InFlight,
        clock: ServerClock,
        hooks: HeartbeatHooks,
        outages: OutageLog,
        restarts: Restarts,
        shared: SharedBeat | None = None,
        worker_id: str = "",
    ) -> None:
        self._open_redis = open_redis
        self._config = config
        self._in_flight = in_flight
        self._clock = clock
        self._hooks = hooks
        self._outages = outages
        self._restarts = restarts
        self._shared = shared
        self._worker_loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._worker_loop, config.deadline_grace)
        self.beaten_at = time.monotonic()
        """When the last beat reached the server, on the monotonic clock."""
        self._steady_since = math.inf
        self._block_logged = False
        self.hangs = ""
        """While a handler blocks the loop past its deadline: a description of it."""
        self._stopping = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self.liveness = LivenessKeeper(
            worker_id,
            LivenessHooks(
                on_cut_off=lambda: self._wake(),
                on_dead=lambda dead: self._call_on_loop(hooks.on_dead, dead),
                on_misjudged=lambda leases: self._call_on_loop(hooks.on_misjudged, leases),
            ),
            lease=config.lease,
            looks_for_others=not config.burst,
        )
        self._thread = threading.Thread(target=self._live, name="veredus-heartbeater", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stops last: the record is removed once no task is in flight."""
        self._stopping.set()
        if self._thread.ident is None:
            return  # it was never started
        self._wake()
        await asyncio.to_thread(self._thread.join, 5.0)

    def _live(self) -> None:
        """Runs until the worker stops. After a failure it starts again with a new loop and connection, so soon that no
        lease expires and that no other worker takes this one for dead."""
        while not self._stopping.is_set():
            try:
                asyncio.run(self._beat_on())
                error = None
            except BaseException as exc:  # whatever it is, beats must go on
                error = exc
            if not self._stopping.is_set():
                longest = min(self._config.beat, SIGN_OF_LIFE)
                self._stopping.wait(self._restarts.ended("heartbeater", error, longest=longest))

    async def _beat_on(self) -> None:
        store = Store(self._open_redis())
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # this loop has ended
                loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        companions = [asyncio.create_task(self.liveness.run(store))]
        if self._shared is not None:
            companions.append(asyncio.create_task(self._show_life(self._shared)))
        for companion in companions:
            companion.add_done_callback(lambda _: woken.set())
        try:
            while not self._stopping.is_set():
                woken.clear()
                for companion in companions:
                    if companion.done():
                        await companion  # raises: all are started again
                began = time.monotonic()
                try:
                    await self.beat(store)
                    self._beaten(time.monotonic())
                    self._outages.recovered("heartbeat")
                    # A slow beat is followed by the next one at once.
                    pause = max(0.0, self._config.beat - (time.monotonic() - began))
                except StoreError as exc:
                    self._outages.error("heartbeat", "the heartbeat failed", exc)
                    pause = min(self._config.beat, 0.5)
                pause = min(pause, self.check_handlers(time.monotonic()))
                if self.liveness.is_cut_off:
                    pause = min(pause, SIGN_OF_LIFE)
                if self.hangs and self._shared is not None:
                    await self.give_back_others(store)
                    self._hooks.on_hung(self.hangs)
                try:
                    async with asyncio.timeout(pause):
                        await woken.wait()
                except TimeoutError:
                    pass
            try:
                await store.presence.leave(self._hooks.describe())
                await self.liveness.leave(store)
            except StoreError:
                pass  # the record expires by itself
        finally:
            for companion in companions:
                companion.cancel()
            await asyncio.gather(*companions, return_exceptions=True)
            await store.close()

    @property
    def steady_since(self) -> float:
        """Since when every beat was on time; infinity if the last one was late or the next one is."""
        return self._steady_since if time.monotonic() - self.beaten_at <= self._longest_gap else math.inf

    def _beaten(self, now: float) -> None:
        if now - self.beaten_at > self._longest_gap or self._steady_since == math.inf:
            self._steady_since = now
        self.beaten_at = now

    @property
    def _longest_gap(self) -> float:
        """Between two beats, unless this process or the server was suspended."""
        return self._config.beat * 1.5

    async def _show_life(self, shared: SharedBeat) -> None:
        """Show the supervisor that this process is running, even while Redis does not answer."""
        while True:
            running = [attempt for attempt in self._in_flight.held() if attempt.running]
            entries = [(entry_of(one.queue, one.task_id), one.lease.latest) for one in running]
            shared.publish(time.monotonic(), entries)
            await asyncio.sleep(self._config.beat / 2)

    async def give_back_others(self, store: Store) -> None:
        """This process ends because of one handler. Requeue the tasks of the others that are within their deadlines,
        without counting an attempt. A task that cannot be given back is recovered."""
        now, held = time.monotonic(), self._in_flight.held()
        blocker = self._watch.blocker(held)
        others: dict[str, list[Settlement]] = {}
        for one in held:
            if one.running and one is not blocker and not one.lease.is_overrun(now):
                others.setdefault(one.queue, []).append(Requeue(one.task_id, one.owner))
        try:
            async with asyncio.timeout(GIVE_BACK):
                await Work(store.redis, "", lease_ms=self._config.lease_ms).settle_each(list(others.items()))
        except (StoreError, TimeoutError) as exc:
            logger.warning("the other tasks of this process cannot be given back and will be recovered: %s", exc)

    async def beat(self, store: Store) -> None:
        """Renew leases first, because they must not be late."""
        now = time.monotonic()
        held = self._in_flight.held()
        failure = await self._extend(store, held, now)
        record = self._hooks.describe()
        working = {
            attempt.task_id: encode_worker(
                record.host,
                record.pid,
                record.server_id,
                attempt.message,
                attempt.started_at,
                attempt.deadline or deadline_of(attempt.message, attempt.started_at),
                self._hooks.shown_payload(attempt.message),
            )
            for attempt in held
            if attempt.running
        }
        before = time.monotonic()
        answer = await store.presence.beat(record, working)
        self._clock.observe(answer.server_ms / 1000 + 0.0005, before, time.monotonic())
        if answer.asked:
            self._call_on_loop(self._hooks.on_asked, answer.asked)
        if failure is not None:
            raise failure

    async def _extend(self, store: Store, held: list[Attempt], now: float) -> StoreError | None:
        """Renew all leases; returns the failure of a queue that could not be reached."""
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
                # The cancel was also published to this worker, but that message may have been lost.
                self._call_on_loop(attempts[(queue, holding.task_id, holding.owner)][0].cancel, then)
            for holding in holdings[queue]:
                attempt, until = attempts[(queue, holding.task_id, holding.owner)]
                if (holding.task_id, holding.owner) in gone:
                    self._lose(attempt)
                else:
                    attempt.lease.renew(until)
        return failure

    def check_handlers(self, now: float) -> float:
        """Report handlers that overran their deadline and a blocked loop, once each. Returns the seconds until the next
        check; infinity if the next beat is soon enough."""
        held = self._in_flight.held()
        overrun = [attempt for attempt in held if attempt.running and attempt.lease.is_overrun(now)]
        silence = self._watch.silence(now)
        if not silence:
            self._block_logged, self.hangs = False, ""
            for attempt in overrun:
                self._note_overrun(attempt)
            return math.inf
        if silence < self._watch.patience:  # it may only be busy
            return self._watch.patience - silence if overrun else math.inf
        blocker = self._watch.blocker(held)
        who = "no task" if blocker is None else f"task {blocker.task_id} ({blocker.kind})"
        what = f"the event loop has been blocked for {silence:.1f} s by {who}, at {self._watch.place()}"
        if not self._block_logged:
            self._block_logged = True
            logger.warning("%s", what)
        if self._hangs(held, now) and not self.hangs:
            self.hangs = what
            logger.error("%s: its deadline has passed; the leases of handlers on the loop are no longer renewed", what)
        return math.inf

    def _note_overrun(self, attempt: Attempt) -> None:
        if attempt.overrun_told:
            return
        attempt.overrun_told = True
        logger.error(
            "task %s (%s) runs on after its deadline, %s: %s",
            attempt.task_id,
            attempt.kind,
            "in a thread, which cannot be stopped" if attempt.where == "thread" else "though it was cancelled",
            "its lease is no longer renewed, and it may be retried while it runs"
            if self._config.retry_while_running
            else "it keeps its slot and its lease until it ends",
        )
        self._call_on_loop(self._hooks.on_overrun, attempt)

    def _hangs(self, held: list[Attempt], now: float) -> bool:
        """Whether a handler blocks the loop past its own deadline. It blocks all others too, so other workers should
        run them. A handler that blocks the loop within its deadline is only waited for."""
        if not self._watch.is_blocked(now):
            return False
        blocker = self._watch.blocker(held)
        suspects = [one for one in held if one.running and one.where == "loop"] if blocker is None else [blocker]
        return any(suspect.lease.is_overrun(now) for suspect in suspects)

    def _lose(self, attempt: Attempt) -> None:
        if not attempt.running:
            return  # it was settled during the call
        attempt.lease.lose()
        self._call_on_loop(attempt.force, End.LEASE_LOST)

    def _call_on_loop(self, function: Callable[[T], None], value: T) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(function, value)
        except RuntimeError:
            pass  # the worker's loop has ended
