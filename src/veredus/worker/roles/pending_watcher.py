"""PendingWatcher: notices pending tasks that this idle worker was not woken for.

Our own scripts wake one idle worker when they put a task into pending (include/waking.lua). A Go client wakes nobody,
an older version neither, and a worker that was woken may die before it dequeues. So of each queue one worker blocks on
the list itself, and all others look every second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from veredus.errors import StoreError
from veredus.model.backoff import Backoff
from veredus.process.outage_log import OUTAGES, OutageLog
from veredus.store.connection.redis import Redis
from veredus.store.connection.wakeups import Watch
from veredus.store.tasks.work import Work
from veredus.wire import keys
from veredus.worker.role import Role

LOOK = 1.0
"""Seconds between two looks at all queues that this worker does not block on."""
MOST_WATCHED = 8
"""Queues that one worker blocks on, at most: each takes a connection."""
BLOCK = 5.0
"""Seconds of one blocking wait; another one follows at once."""
BRIEFLY = 0.1
"""Seconds of the first blocking wait after an outage, which shows whether the server is back."""
RENEW = 9.0
"""Seconds after which a worker renews its right to block on a queue."""
HOLD_MS = 15_000
"""How long that right lasts."""
PATIENCE = 0.003
"""Seconds that a task may stay before the worker that blocks on the queue takes it: another one may have been woken."""
EAGER = 5.0
"""Seconds for which there is no such patience after a task for which nobody was woken."""
AGAIN_AFTER = 60
"""Looks after which an idle worker has entered itself in every queue again, lest an entry that was lost is missed."""
MOST_AGAIN = 20
"""Queues that it enters itself in at one look, at most."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before the next try of a server that is away."""


class PendingWatcher(Role):
    name = "pending-watcher"

    def __init__(
        self,
        redis: Redis,
        work: Work,
        queues: Sequence[str],
        worker_id: str,
        outages: OutageLog,
        *,
        asleep: Mapping[str, asyncio.Event],
        found: Callable[[str], None],
    ) -> None:
        """`asleep` has an event for each queue, which is set while the worker waits for work there."""
        super().__init__(LOOK, outages)
        self._redis = redis
        self._work = work
        self._worker_id = worker_id
        self._asleep = asleep
        self._found = found
        self._held = {queue: asyncio.Event() for queue in queues[:MOST_WATCHED]}
        """Set while this worker has the right to block on the queue."""
        self._asked: set[str] = set()
        """Queues for which that right was asked and no reply has come."""
        self._watches = {queue: Watch(redis, queue) for queue in self._held}
        self._watchers: list[asyncio.Task[None]] = []
        self._renew_at = dict.fromkeys(self._held, 0.0)
        self._eager_until = dict.fromkeys(self._held, 0.0)
        self._again, self._due_again = 0, 0.0

    async def run(self) -> None:
        self._watchers = [asyncio.create_task(self._watch(queue)) for queue in self._held]
        try:
            await super().run()
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            for watch in self._watches.values():
                watch.close()
            await asyncio.gather(*self._watchers, return_exceptions=True)
            await self._release([q for q, held in self._held.items() if held.is_set() or q in self._asked])

    async def step(self) -> bool:
        for watcher in self._watchers:
            if watcher.done():
                await watcher  # raises why it has ended: the role is started again
        asleep = [queue for queue, is_asleep in self._asleep.items() if is_asleep.is_set()]
        self._enter_again(asleep)
        unwatched = [queue for queue in asleep if queue not in self._held or not self._held[queue].is_set()]
        if not unwatched:
            return False
        await self._take([queue for queue in unwatched if queue in self._held])
        unwatched = [queue for queue in unwatched if queue not in self._held or not self._held[queue].is_set()]
        for queue in await self._work.find_pending(unwatched):
            self._found(queue)
        return True

    def _enter_again(self, asleep: Sequence[str]) -> None:
        """A few queues at each look: the dequeue that follows enters this worker as idle."""
        self._due_again += min(MOST_AGAIN, len(asleep) / AGAIN_AFTER)
        while asleep and self._due_again >= 1:
            self._due_again -= 1
            self._again += 1
            self._found(asleep[self._again % len(asleep)])

    async def _take(self, queues: Collection[str]) -> None:
        """Block on the queues that no worker blocks on."""
        commands = [("SET", keys.watcher(queue), self._worker_id, "NX", "PX", HOLD_MS) for queue in queues]
        self._asked.update(queues)  # a stop may come before the reply
        for queue, reply in zip(queues, await self._redis.command_each(commands), strict=True):
            self._asked.discard(queue)
            if isinstance(reply, StoreError):
                self.outages.error(("watch", queue), f"cannot wait for work in queue {queue}", reply)
                continue
            self.outages.recovered(("watch", queue))
            if reply == b"OK":
                self._renew_at[queue] = time.monotonic() + RENEW
                self._held[queue].set()

    async def _release(self, queues: Collection[str]) -> None:
        for queue in queues:
            self._held[queue].clear()
            key = keys.watcher(queue)
            try:
                if await self._redis.command("GET", key, key=key) == self._worker_id.encode():
                    await self._redis.command("DEL", key, key=key)
            except StoreError:
                pass  # it lapses by itself

    async def _watch(self, queue: str) -> None:
        """Block on the queue while this worker is idle there and has the right to. A server that is full or read-only
        refuses blocking waits: then the queue is polled."""
        await self._asleep[queue].wait()
        await self._take([queue])
        backoff, block = Backoff(FIRST_PAUSE, LONGEST_PAUSE), BLOCK
        while True:
            await self._held[queue].wait()
            try:
                if not await self._is_asleep(queue) or not await self._renew(queue):
                    await self._release([queue])
                    continue
                task_id = await self._watches[queue].wait(block)
                if task_id is not None and await self._is_left(queue, task_id):
                    self._found(queue)
                self.outages.recovered(("watch", queue))
                backoff, block = Backoff(FIRST_PAUSE, LONGEST_PAUSE), BLOCK
            except OUTAGES as exc:
                self.outages.outage(exc, ("watch", queue))
                await self.pause(backoff.take())
                block = BRIEFLY
                self._found(queue)
            except StoreError as exc:
                self.outages.error(("watch", queue), f"cannot wait for work in queue {queue}", exc)
                await self.pause(LONGEST_PAUSE)
                self._found(queue)

    async def _is_asleep(self, queue: str) -> bool:
        """A worker that soon waits for work again keeps its right; one that is busy leaves it to others."""
        try:
            async with asyncio.timeout(0.05):
                await self._asleep[queue].wait()
        except TimeoutError:
            return False
        return True

    async def _renew(self, queue: str) -> bool:
        now = time.monotonic()
        if now < self._renew_at[queue]:
            return True
        key = keys.watcher(queue)
        holder, idle = await self._redis.command_each([("GET", key), ("ZCARD", keys.idle(queue))])
        for reply in (holder, idle):
            if isinstance(reply, StoreError):
                raise reply
        if holder not in (None, self._worker_id.encode()):
            return False
        await self._redis.command("SET", key, self._worker_id, "PX", HOLD_MS, key=key)
        self._renew_at[queue] = now + RENEW
        if idle <= 1:  # nobody else can be woken: no reason to wait for that
            self._eager_until[queue] = self._renew_at[queue]
        return True

    async def _is_left(self, queue: str, task_id: bytes) -> bool:
        """Whether nobody else takes this task. Our own producers have woken a worker, which may be another one."""
        if time.monotonic() < self._eager_until[queue]:
            return True
        await asyncio.sleep(PATIENCE)
        if not self._asleep[queue].is_set() or await self._watches[queue].next_task() != task_id:
            return False
        self._eager_until[queue] = time.monotonic() + EAGER
        return True
