"""Waiting for tasks: all waiters of an event loop share one subscription, so that nothing polls."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import random
import time
from collections.abc import AsyncIterator

from veredus.errors import ConnectionLost, NotReady, StoreError
from veredus.model.backoff import Backoff
from veredus.store.connection.redis import Redis
from veredus.store.connection.wakeups import Subscription
from veredus.store.tasks.live_processes import LiveProcess, LiveProcesses
from veredus.store.tasks.results import DONE, GONE, Results, TaskReport, heard
from veredus.wire import keys

logger = logging.getLogger("veredus.client")

LOOK = 15.0
"""Seconds after which the tasks of all waiters are read anyway: a Go worker announces nothing, and a connection can
be dead without a sign. A listener without waiters ends at the same interval."""
LOOK_BESIDE_GO = 1.0
"""The same where Go servers are alive."""
CHECK_FOR_GO = 5.0
"""Seconds after which waiters of a queue that no worker serves look whether a Go server has started."""
MOST_BESIDE_GO = 500
"""Tasks that are read per interval; the others follow at the next one."""
LAST_WORD = 0.5
"""Seconds for which a message about a task that is gone may still arrive: messages and reads use two connections."""

_Inbox = asyncio.Queue[TaskReport | None]


class TaskListener:
    """Reports to each waiter what happened to its task. Connects when the first waiter comes."""

    def __init__(self, redis: Redis, results: Results, *, patience: float = 5.0) -> None:
        self._results = results
        self._roll = LiveProcesses(redis)
        self._members: list[LiveProcess] = []
        """The worker processes that were alive at the last check."""
        self._looked_at = 0.0
        self._patience = patience
        self.channel = keys.ends(os.urandom(8).hex())
        self._subscription = Subscription(redis, [self.channel], self._receive)
        self._tasks: dict[str, tuple[str, str]] = {}
        self._inboxes: dict[str, list[_Inbox]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._failure: StoreError | None = None

    async def sights(self, queue: str, task_id: str) -> AsyncIterator[TaskReport]:
        """Yields what is read and heard about a task, beginning with its current state; the last item is its end.
        Continues after outages."""
        key, inbox = keys.task(queue, task_id), _Inbox()
        self._tasks[key] = (queue, task_id)
        self._inboxes.setdefault(key, []).append(inbox)
        try:
            # Subscribe first, then read: nothing that happens in between is missed.
            await self._listening()
            sight = await self._look(queue, task_id, self._patience)
            while not sight.ended:
                yield sight
                in_go = sight.in_go
                sight = await self._next(inbox)
                if not sight.whole:
                    sight = await self._look(queue, task_id, math.inf)
                if in_go and sight.state == GONE:
                    sight = TaskReport(DONE)  # a running task cannot be deleted: Go has finished it
            yield sight
        finally:
            self._inboxes[key].remove(inbox)
            if not self._inboxes[key]:
                del self._inboxes[key], self._tasks[key]

    async def _next(self, inbox: _Inbox) -> TaskReport:
        sight = await inbox.get()
        if sight is not None and sight.state == GONE:
            try:
                async with asyncio.timeout(LAST_WORD):
                    sight = await inbox.get()
            except TimeoutError:
                pass
        if sight is None:
            raise ConnectionLost("the app was closed while this was being waited for")
        return sight

    async def _look(self, queue: str, task_id: str, patience: float) -> TaskReport:
        give_up, backoff = time.monotonic() + patience, Backoff()
        while True:
            try:
                return await self._results.look(queue, task_id, self.channel, for_go=self._may_be_gos(queue))
            except (ConnectionLost, NotReady):
                if time.monotonic() + backoff.next > give_up:
                    raise
                await asyncio.sleep(backoff.take())

    def _receive(self, channel: str, data: bytes) -> None:
        try:
            key, sight = heard(data)
        except ValueError:
            logger.warning("received a message on %s that is not a notification", channel)
            return
        self._deliver(key, sight)

    def _deliver(self, key: str, sight: TaskReport | None) -> None:
        for inbox in self._inboxes.get(key, ()):
            inbox.put_nowait(sight)

    def close(self) -> None:
        """End the subscription. Remaining waiters get an error."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        self._open.clear()
        self._subscription.close()
        for key in self._inboxes:
            self._deliver(key, None)

    # The subscription.

    async def _listening(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="veredus-listener")
        try:
            async with asyncio.timeout(self._patience):
                await self._open.wait()
        except TimeoutError:
            raise ConnectionLost(f"cannot listen for results: {self._failure or 'no answer in time'}") from None

    async def _keep(self) -> None:
        """Stay subscribed while there are waiters. After every interruption, read the tasks of all waiters at once."""
        backoff, again = Backoff(), False
        while True:
            broken = asyncio.Event()
            try:
                await self._subscription.open(broken.set)
                await self._check_for_go()
                self._looked_at = time.monotonic()
                self._open.set()
                if again:
                    await self._look_at_all()
                backoff, again = Backoff(), True
                if await self._stay(broken):
                    return
            except StoreError as exc:
                self._failure = exc
            except Exception:
                logger.exception("the listener failed")
            finally:
                self._open.clear()
                self._subscription.close()
            await asyncio.sleep(backoff.take())

    async def _stay(self, broken: asyncio.Event) -> bool:
        """Runs until the connection breaks; returns True if there are no waiters left."""
        while not broken.is_set():
            try:
                async with asyncio.timeout(self._interval() * random.uniform(0.9, 1.1)):
                    await broken.wait()
            except TimeoutError:
                if not self._inboxes:
                    return True
                if time.monotonic() - self._looked_at >= LOOK * 0.9:
                    self._looked_at = time.monotonic()
                    await self._subscription.ping()
                    await self._check_for_go()
                    await self._look_at_all()
                    continue
                if not self._is_beside_go:
                    await self._check_for_go()
                if self._is_beside_go:
                    await self._look_at_all(MOST_BESIDE_GO)
        return False

    def _interval(self) -> float:
        if self._is_beside_go:
            return LOOK_BESIDE_GO
        return min(CHECK_FOR_GO, LOOK) if any(self._may_be_gos(queue) for queue, _ in self._tasks.values()) else LOOK

    async def _check_for_go(self) -> None:
        self._members = await self._roll.members()

    @property
    def _is_beside_go(self) -> bool:
        """Whether Go servers are alive, which do not announce how a task ended."""
        return any(member.is_go for member in self._members)

    def _may_be_gos(self, queue: str) -> bool:
        """Whether a Go server may run the tasks of this queue: also one that starts later, if nobody serves it."""
        return self._is_beside_go or not any(queue in member.server.queues for member in self._members)

    async def _look_at_all(self, most: int | None = None) -> None:
        waited = dict(itertools.islice(self._tasks.items(), most))
        for key in waited if most is not None else ():
            self._tasks[key] = self._tasks.pop(key)  # moves to the end of the order, so that others are next
        sights = await self._results.look_at_all(list(waited.values()), self.channel)
        for key, sight in zip(waited, sights, strict=True):
            self._deliver(key, sight)
