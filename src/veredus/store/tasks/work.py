"""Dequeues and settles tasks, many per round trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from veredus.errors import StoreError
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.model.pools import FreeSlots
from veredus.model.settlement import Archive, Complete, Done, Park, Requeue, Retry, Settlement
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import keys, lease_owner


class CompleteRow(NamedTuple):
    task_id: str
    owner: str
    unique_key: str
    message: bytes
    retention: int
    has_result: bool
    result: bytes
    attempt: bytes


DEQUEUE = load(
    "task/dequeue",
    keys="pending paused active lease batch",
    args="queue_prefix wanted lease_ms owner number is_again batch_ttl_ms startable cursor"
    " loop_room thread_room process_room most_bytes for_go channel",
)
WAKE = load("task/wake", keys="pending", args="queue_prefix")
IDLE = load("task/idle", keys="pending", args="queue_prefix channel")
DONE = load(
    "task/done",
    keys="active lease",
    args="queue_prefix common_owner",
    rows=Done,
)
COMPLETE = load(
    "task/complete",
    keys="active lease completed",
    args="queue_prefix",
    rows=CompleteRow,
)
RETRY = load(
    "task/retry",
    keys="active lease retry scheduled due",
    args="queue_prefix channel",
    rows=Retry,
)
ARCHIVE = load(
    "task/archive",
    keys="active lease archived",
    args="queue_prefix max_size max_age",
    rows=Archive,
)
REQUEUE = load("task/requeue", keys="active lease pending", args="queue_prefix", rows=Requeue)
PARK = load(
    "task/park",
    keys="active lease pending scheduled retry due waits",
    args="queue_prefix channel",
    rows=Park,
)

MOST_BYTES = 1024 * 1024
"""The most bytes of messages in one round trip; each queue always yields at least one task."""
MOST_KEYS = 500
"""Keys of one command."""
BATCH_MEMORY_MS = 600_000
"""How long a worker's last batch number is remembered."""


@dataclass(frozen=True, slots=True)
class DequeueRequest:
    """What a worker wants from one queue: the number of tasks, and the types for which its pools have room."""

    queue: str
    wanted: int
    rooms: FreeSlots
    cursor: str = ""
    """A task that was passed over before: only tasks behind it are examined."""
    for_go: str = ""
    """Which tasks are left for Go servers, in the form of `model.go_share`; empty for none."""
    channel: str = ""
    """Where this worker is woken if it finds the queue empty."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one dequeue."""

    owner: str
    now_ms: int
    lease_end: int
    left: int
    """Tasks still pending; -1 if the queue is paused."""
    rows: list[tuple[str, bytes]]
    dropped: list[tuple[str, str]]
    """Ids that could not be dequeued, with the reason: dangling, wrongtype, duplicate, expired."""
    cancels: dict[str, str] = field(default_factory=dict)
    """Ids among the rows that were cancelled, with their requested end."""
    wait: float | None = None
    """Seconds after which to ask again, because the queue is at its limit."""
    behind: int = 0
    """Tasks behind the last one that was examined."""
    cursors: tuple[str, ...] = ()
    """For each pool, a task up to which nothing is left that this pool could start; empty for the tail of the queue.
    No cursors if nothing was examined."""
    unknown: tuple[str, ...] = ()
    """Types that were passed over because this worker has no handler for them."""
    left_for_go: tuple[tuple[str, str], ...] = ()
    """Tasks that were passed over because a Go server may take them, each with its type."""
    is_idle: bool = False
    """Whether this worker was entered as idle: a producer that puts a task into the queue wakes one of those."""
    waits: Sequence[int] = ()
    """For how many ms each of the rows was pending, -1 if unknown; empty if the batch was asked for again."""


class Work:
    """Dequeues and settles. Each worker numbers its dequeues, so that it can ask again for one whose reply was lost."""

    def __init__(
        self,
        redis: Redis,
        worker_id: str,
        *,
        lease_ms: int,
        archive: ArchiveLimits = ASYNQS,
        startable: str = "",
        time: Callable[[], float] | None = None,
    ) -> None:
        """`startable` lists the types to dequeue, in the form of `wire.types.startable`; empty for all. With `time`,
        batches are numbered by the milliseconds at which they were asked for: the owner of a task then says since when
        it has the task, even if that worker has died."""
        self._startable = startable
        self._redis = redis
        self._time = time
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._archive_limits = archive
        self._numbers: dict[str, int] = {}
        self._unanswered: set[str] = set()

    async def dequeue(self, queue: str, wanted: int) -> Batch:
        """Take up to `wanted` tasks, for any pool. After an error, the next call asks for the same batch first."""
        (answer,) = await self.dequeue_each([DequeueRequest(queue, wanted, FreeSlots(wanted, wanted, wanted))])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def dequeue_each(self, asks: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
        """Take tasks from several queues, in one round trip per server; each has a result of its own."""
        questions = [self._question(ask, MOST_BYTES // len(asks)) for ask in asks]
        if len(questions) == 1:
            call = questions[0][1]
            try:
                replies = [await self._redis.run(call.script, call.keys, call.args)]
            except StoreError as exc:
                return [exc]
        else:
            replies = await self._redis.run_each([call for _, call in questions])
        return [
            self._answer(ask.queue, owner, reply)
            for ask, (owner, _), reply in zip(asks, questions, replies, strict=True)
        ]

    def _question(self, ask: DequeueRequest, most_bytes: int) -> tuple[str, ScriptCall]:
        queue = ask.queue
        is_again = queue in self._unanswered
        number = self._numbers.get(queue, 0)
        if not is_again:
            number = max(number + 1, 0 if self._time is None else round(self._time() * 1000))
        self._numbers[queue] = number
        owner = lease_owner.owner(self._worker_id, number)
        self._unanswered.add(queue)
        names = (
            keys.pending(queue),
            keys.paused(queue),
            keys.active(queue),
            keys.lease(queue),
            keys.batch(queue, self._worker_id),
        )
        args = (
            *(keys.queue_prefix(queue), ask.wanted, self._lease_ms, owner, number, int(is_again), BATCH_MEMORY_MS),
            *(self._startable, ask.cursor, *ask.rooms, most_bytes, ask.for_go, ask.channel),
        )
        return owner, ScriptCall(DEQUEUE, names, args)

    def _answer(self, queue: str, owner: str, reply: Any) -> Batch | StoreError:
        if isinstance(reply, StoreError):
            return reply
        if isinstance(reply, BaseException):
            raise reply
        self._unanswered.discard(queue)
        now_ms, lease_end, left, rows, dropped, cancels, wait_ms, behind, cursors, unknown, for_go, *rest = reply
        waits, is_idle = rest
        return Batch(
            owner,
            now_ms,
            int(lease_end),
            left,
            [(text(rows[i]), rows[i + 1]) for i in range(0, len(rows), 2)],
            [(text(dropped[i]), text(dropped[i + 1])) for i in range(0, len(dropped), 2)],
            {text(cancels[i]): text(cancels[i + 1]) for i in range(0, len(cancels), 2)},
            None if wait_ms < 0 else wait_ms / 1000,
            behind,
            tuple([cursor.decode(errors="surrogateescape") for cursor in cursors]),
            tuple([task_type.decode(errors="replace") for task_type in unknown]),
            tuple([(text(for_go[i]), text(for_go[i + 1])) for i in range(0, len(for_go), 2)]),
            bool(is_idle),
            waits,
        )

    async def wake_each(self, queues: Sequence[str]) -> None:
        """Wake another worker for each of these queues that has pending tasks. An error is no harm: workers also look
        by themselves."""
        await self._redis.run_each(
            [ScriptCall(WAKE, (keys.pending(one),), (keys.queue_prefix(one),)) for one in queues]
        )

    async def idle_each(self, channels: Mapping[str, str]) -> list[int | StoreError]:
        """Enter this worker as idle in each of these queues that is empty, with the channel where it is woken. Returns
        how many tasks are pending; 0 means that it was entered."""
        calls = [
            ScriptCall(IDLE, (keys.pending(queue),), (keys.queue_prefix(queue), channel))
            for queue, channel in channels.items()
        ]
        parts = [calls[at : at + MOST_KEYS] for at in range(0, len(calls), MOST_KEYS)]
        return [reply for part in parts for reply in await self._redis.run_each(part)]

    async def leave_each(self, channels: Mapping[str, str]) -> list[str]:
        """No longer wait in these queues. Returns those where this worker was not entered any more: it was woken."""
        commands = [("ZREM", keys.idle(queue), channel) for queue, channel in channels.items()]
        replies = await self._redis.command_each(commands)
        return [queue for queue, reply in zip(channels, replies, strict=True) if reply != 1]

    async def find_pending(self, queues: Sequence[str]) -> list[str]:
        """Those that have pending tasks, or whose server does not answer. On one server, one command looks at hundreds
        of queues."""
        if isinstance(self._redis, Cluster):
            return [queue for queue, length in zip(queues, await self.lengths(queues), strict=True) if length != 0]
        parts = [queues[at : at + MOST_KEYS] for at in range(0, len(queues), MOST_KEYS)]
        replies = await self._redis.command_each([("EXISTS", *[keys.pending(one) for one in part]) for part in parts])
        suspects = [queue for part, reply in zip(parts, replies, strict=True) if reply != 0 for queue in part]
        return [queue for queue, length in zip(suspects, await self.lengths(suspects), strict=True) if length != 0]

    async def deferrals(self, queue: str, task_id: str) -> int:
        """How often this task was retried without a failure."""
        key = keys.task(queue, task_id)
        return int(await self._redis.command("HGET", key, "deferrals", key=key) or 0)

    async def losses(self, queue: str, task_id: str) -> int:
        """How often this task was lost with its worker, or killed the process that ran it."""
        key = keys.task(queue, task_id)
        return int(await self._redis.command("HGET", key, "losses", key=key) or 0)

    async def is_durable(self, queue: str, task_id: str) -> bool:
        """Whether the task has used a durable call."""
        key = keys.task(queue, task_id)
        return bool(await self._redis.command("HEXISTS", key, "run", key=key))

    async def lengths(self, queues: Sequence[str]) -> list[int | None]:
        """The number of pending tasks of each queue, in one round trip per server; None if unknown."""
        replies = await self._redis.command_each([("LLEN", keys.pending(queue)) for queue in queues])
        return [reply if isinstance(reply, int) else None for reply in replies]

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[int]:
        """Write settlements of one kind. Returns the positions of those whose tasks this worker no longer holds."""
        call = self.settle_call(queue, settlements)
        lost = await self._redis.run(call.script, call.keys, call.args)
        return [position - 1 for position in lost]

    async def settle_each(self, batches: Sequence[tuple[str, Sequence[Settlement]]]) -> None:
        """Write batches of several queues, each of one kind, in one round trip per server. Raises the first error
        after all others are written."""
        calls = [self.settle_call(queue, settlements) for queue, settlements in batches]
        for reply in await self._redis.run_each(calls) if calls else ():
            if isinstance(reply, BaseException):
                raise reply

    def settle_call(self, queue: str, settlements: Sequence[Settlement]) -> ScriptCall:
        call: ScriptCall = _WRITERS[type(settlements[0])](self, queue, settlements)
        return call

    def _done(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        owner = settlements[0].owner
        rows: Sequence[tuple[str, ...]] = settlements
        if all(s.owner == owner and not s.unique_key for s in settlements):
            rows = [(s.task_id,) for s in settlements]
        names = (keys.active(queue), keys.lease(queue))
        return ScriptCall(DONE, names, DONE.args((keys.queue_prefix(queue), owner), rows))

    def _complete(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        rows = [
            CompleteRow(
                s.task_id,
                s.owner,
                s.unique_key,
                s.message,
                s.retention,
                s.result is not None,
                s.result or b"",
                s.attempt,
            )
            for s in settlements
        ]
        names = (keys.active(queue), keys.lease(queue), keys.completed(queue))
        return ScriptCall(COMPLETE, names, COMPLETE.args((keys.queue_prefix(queue),), rows))

    def _retry(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        names = (
            keys.active(queue),
            keys.lease(queue),
            keys.retry(queue),
            keys.scheduled(queue),
            keys.due(queue),
        )
        return ScriptCall(RETRY, names, RETRY.args((keys.queue_prefix(queue), keys.delay_wakeup(queue)), settlements))

    def _archive(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        limits = self._archive_limits
        names = (keys.active(queue), keys.lease(queue), keys.archived(queue))
        args = ARCHIVE.args((keys.queue_prefix(queue), limits.most, limits.seconds), settlements)
        return ScriptCall(ARCHIVE, names, args)

    def _requeue(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        names = (keys.active(queue), keys.lease(queue), keys.pending(queue))
        return ScriptCall(REQUEUE, names, REQUEUE.args((keys.queue_prefix(queue),), settlements))

    def _park(self, queue: str, settlements: Sequence[Any]) -> ScriptCall:
        names = (
            keys.active(queue),
            keys.lease(queue),
            keys.pending(queue),
            keys.scheduled(queue),
            keys.retry(queue),
            keys.due(queue),
            keys.waits(queue),
        )
        return ScriptCall(PARK, names, PARK.args((keys.queue_prefix(queue), keys.delay_wakeup(queue)), settlements))


_WRITERS: dict[type, Any] = {
    Done: Work._done,
    Complete: Work._complete,
    Retry: Work._retry,
    Archive: Work._archive,
    Requeue: Work._requeue,
    Park: Work._park,
}
