"""Heartbeater: keeps leases and shows that the worker lives, from a thread of its own.

A handler that blocks the event loop does not block this thread, so its task is not taken for dead; until its deadline
and a little more have passed, for then it hangs, and the lease is left to run out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from veredus.clock import ServerClock
from veredus.errors import StoreError
from veredus.model.verdict import End
from veredus.store.leases import Holding
from veredus.store.redis import Redis
from veredus.store.store import Store
from veredus.wire.presence import ServerRecord, encode_worker
from veredus.worker.complaints import Complaints
from veredus.worker.config import WorkerConfig
from veredus.worker.hands import Attempt, Hands

logger = logging.getLogger("veredus.worker")


class Heartbeater:
    """Its own thread, event loop and connection. Touches nothing of the worker's loop but through it."""

    def __init__(
        self,
        open_redis: Callable[[], Redis],
        config: WorkerConfig,
        hands: Hands,
        clock: ServerClock,
        describe: Callable[[], ServerRecord],
        on_overrun: Callable[[Attempt, bool], None],
        complaints: Complaints,
    ) -> None:
        self._open_redis = open_redis
        self._config = config
        self._hands = hands
        self._clock = clock
        self._describe = describe
        self._on_overrun = on_overrun
        self._complaints = complaints
        self._worker_loop = asyncio.get_running_loop()
        self._loop_seen = time.monotonic()
        self.beaten_at = time.monotonic()
        """When a beat last reached the server, on the monotonic clock."""
        self._overrun: set[tuple[str, str]] = set()
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
        try:
            asyncio.run(self._beat_on())
        except Exception:
            logger.exception("the heartbeater died: this worker's leases will run out")

    async def _beat_on(self) -> None:
        store = Store(self._open_redis())
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._wake = wake
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    await self.beat(store)
                    self.beaten_at = time.monotonic()
                    self._complaints.recovered("heartbeat")
                    # A beat that took long (a server that stood still) is followed by the next one at once.
                    pause = max(0.0, self._config.beat - (time.monotonic() - began))
                except StoreError as exc:
                    self._complaints.error("heartbeat", "the heartbeat failed", exc)
                    pause = min(self._config.beat, 0.5)
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
            await store.close()

    async def beat(self, store: Store) -> None:
        """Leases first: they are what must not be late."""
        self._touch_worker_loop()
        now = time.monotonic()
        held = self._hands.held()
        failure = await self._extend(store, held, now)
        record = self._describe()
        working = {
            attempt.task_id: encode_worker(
                record.host, record.pid, record.server_id, attempt.message, attempt.started_at, attempt.deadline
            )
            for attempt in held
            if attempt.running
        }
        before = time.time()
        server_ms = await store.presence.beat(record, working)
        self._clock.observe(server_ms / 1000 + 0.0005, before, time.time())
        if failure is not None:
            raise failure

    def _touch_worker_loop(self) -> None:
        def seen() -> None:
            self._loop_seen = time.monotonic()

        try:
            self._worker_loop.call_soon_threadsafe(seen)
        except RuntimeError:
            pass  # the worker's loop has ended

    async def _extend(self, store: Store, held: list[Attempt], now: float) -> StoreError | None:
        """Returns the failure of a queue that could not be reached, after the others have been taken care of."""
        holdings: dict[str, list[Holding]] = {}
        attempts: dict[tuple[str, str, str], tuple[Attempt, float]] = {}
        hung = self._loop_is_hung(held, now)
        for attempt in held:
            seconds = attempt.lease.renewal(now, self._config.lease, running=attempt.running)
            if attempt.running and attempt.lease.is_overrun(now):
                self._note_overrun(attempt)
            if seconds <= 0 or (hung and attempt.where == "loop"):
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

    def _note_overrun(self, attempt: Attempt) -> None:
        key = (attempt.task_id, attempt.owner)
        if key in self._overrun:
            return
        self._overrun.add(key)
        hung = time.monotonic() - self._loop_seen > self._config.deadline_grace
        logger.error(
            "task %s (%s) runs on after its deadline%s: its lease is no longer renewed",
            attempt.task_id,
            attempt.message.type,
            " and blocks the event loop" if hung else "",
        )
        self._on_overrun(attempt, hung)

    def _loop_is_hung(self, held: list[Attempt], now: float) -> bool:
        """A handler that blocks the loop past its own deadline holds up all others: let other workers have them."""
        if now - self._loop_seen <= self._config.deadline_grace + self._config.beat:
            return False
        return any(attempt.running and attempt.where == "loop" and attempt.lease.is_overrun(now) for attempt in held)

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
