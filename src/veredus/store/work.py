"""The counter: tasks are handed out here and settled here, many per round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from veredus.errors import StoreError
from veredus.model.archive import ASYNQS, ArchiveLimits
from veredus.model.pools import Rooms
from veredus.model.settlement import Archive, Complete, Done, Requeue, Retry, Settlement
from veredus.store.connection import Argument
from veredus.store.places import text
from veredus.store.redis import Call, Redis
from veredus.store.scripts import load
from veredus.wire import holding, keys

DEQUEUE = load(
    "task/dequeue",
    keys="pending paused active lease batch",
    args="task_prefix wanted lease_ms owner number again batch_ttl_ms startable cursor"
    " loop_room thread_room process_room most_bytes for_go [now_ms]",
)
DONE = load(
    "task/done",
    keys="active lease processed",
    args="task_prefix count width owner {task_id [owner unique_key]}* [now_ms]",
)
COMPLETE = load(
    "task/complete",
    keys="active lease completed processed",
    args="task_prefix count {task_id owner unique_key message retention has_result result}* [now_ms]",
)
RETRY = load(
    "task/retry",
    keys="active lease retry scheduled due processed failed",
    args="task_prefix channel count {task_id owner message delay_ms is_failure front crashed traceback}* [now_ms]",
)
ARCHIVE = load(
    "task/archive",
    keys="active lease archived processed failed",
    args="task_prefix max_size max_age count "
    "{task_id owner unique_key message original is_failure traceback}* [now_ms]",
)
REQUEUE = load("task/requeue", keys="active lease pending", args="task_prefix count {task_id owner}* [now_ms]")

MOST_BYTES = 1024 * 1024
"""Bytes of messages that one round trip brings, at most; of each queue that is asked, always one task."""
BATCH_MEMORY_MS = 600_000
"""How long a worker's last batch number is remembered."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker wants of one queue: so many tasks, of the types that its pools have room for."""

    queue: str
    wanted: int
    rooms: Rooms
    cursor: str = ""
    """A task that was passed over before: only what is behind it is looked at."""
    for_go: str = ""
    """Which tasks are left for Go servers, as `model.sharing.Share` says it; empty for none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one dequeue handed out."""

    owner: str
    now_ms: int
    lease_end: int
    left: int
    """Still pending; -1 when the queue is paused."""
    rows: list[tuple[str, bytes]]
    dropped: list[tuple[str, str]]
    """Ids that could not be handed out, with the reason: dangling, wrongtype, duplicate, expired."""
    cancels: dict[str, str] = field(default_factory=dict)
    """Ids among the rows that shall not be run, with what to do with them instead."""
    wait: float | None = None
    """Seconds after which to ask again, because the queue is at its limit."""
    behind: int = 0
    """Tasks behind the last one that was looked at."""
    cursors: tuple[str, ...] = ()
    """For each pool a task up to which nothing is left that this pool could start; empty where that is the tail. No
    cursors at all if nothing was looked at."""
    unknown: tuple[str, ...] = ()
    """Types that were passed over because this worker has no handler for them."""
    left_for_go: tuple[tuple[str, str], ...] = ()
    """Tasks that were passed over because a Go server may take them, each with its type."""


class Work:
    """Dequeue and settle. Each worker numbers its dequeues, so that one whose reply was lost can be asked for again."""

    def __init__(
        self, redis: Redis, worker_id: str, *, lease_ms: int, archive: ArchiveLimits = ASYNQS, startable: str = ""
    ) -> None:
        """`startable` lists the types that are handed out, as `wire.types.startable` writes it; empty for all."""
        self._startable = startable
        self._redis = redis
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._archive_limits = archive
        self._numbers: dict[str, int] = {}
        self._unanswered: set[str] = set()

    async def dequeue(self, queue: str, wanted: int) -> Batch:
        """Take up to `wanted` tasks, for whatever pool. After an error, the next call asks for the same batch first."""
        (answer,) = await self.dequeue_each([Ask(queue, wanted, Rooms(wanted, wanted, wanted))])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def dequeue_each(self, asks: Sequence[Ask]) -> list[Batch | StoreError]:
        """Take tasks of several queues, in one round trip per server; each has its own answer."""
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

    def _question(self, ask: Ask, most_bytes: int) -> tuple[str, Call]:
        queue = ask.queue
        is_again = queue in self._unanswered
        number = self._numbers.get(queue, 0) + (0 if is_again else 1)
        self._numbers[queue] = number
        owner = holding.owner(self._worker_id, number)
        self._unanswered.add(queue)
        names = (
            keys.pending(queue),
            keys.paused(queue),
            keys.active(queue),
            keys.lease(queue),
            keys.batch(queue, self._worker_id),
        )
        args = (
            *(keys.task_prefix(queue), ask.wanted, self._lease_ms, owner, number, int(is_again), BATCH_MEMORY_MS),
            *(self._startable, ask.cursor, *ask.rooms, most_bytes, ask.for_go),
        )
        return owner, Call(DEQUEUE, names, args)

    def _answer(self, queue: str, owner: str, reply: Any) -> Batch | StoreError:
        if isinstance(reply, StoreError):
            return reply
        if isinstance(reply, BaseException):
            raise reply
        self._unanswered.discard(queue)
        now_ms, lease_end, left, rows, dropped, cancels, wait_ms, behind, cursors, unknown, for_go = reply
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
        )

    async def deferrals(self, queue: str, task_id: str) -> int:
        """How often this task was retried for something that was no failure."""
        key = keys.task(queue, task_id)
        return int(await self._redis.command("HGET", key, "deferrals", key=key) or 0)

    async def losses(self, queue: str, task_id: str) -> int:
        """How often this task was lost with its worker, or killed the process that ran it."""
        key = keys.task(queue, task_id)
        return int(await self._redis.command("HGET", key, "losses", key=key) or 0)

    async def lengths(self, queues: Sequence[str]) -> list[int | None]:
        """How many tasks are pending in each, in one round trip per server; None where that cannot be told."""
        replies = await self._redis.command_each([("LLEN", keys.pending(queue)) for queue in queues])
        return [reply if isinstance(reply, int) else None for reply in replies]

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[int]:
        """Write settlements of one kind. Returns the positions of those that were no longer ours."""
        call = self.settle_call(queue, settlements)
        lost = await self._redis.run(call.script, call.keys, call.args)
        return [position - 1 for position in lost]

    async def settle_each(self, batches: Sequence[tuple[str, Sequence[Settlement]]]) -> None:
        """Batches of several queues, each of one kind, in one round trip per server. Raises the first error once all
        others are written."""
        calls = [self.settle_call(queue, settlements) for queue, settlements in batches]
        for reply in await self._redis.run_each(calls) if calls else ():
            if isinstance(reply, BaseException):
                raise reply

    def settle_call(self, queue: str, settlements: Sequence[Settlement]) -> Call:
        call: Call = _WRITERS[type(settlements[0])](self, queue, settlements)
        return call

    def _done(self, queue: str, settlements: Sequence[Any]) -> Call:
        owner = settlements[0].owner
        lean = all(s.owner == owner and not s.unique_key for s in settlements)
        args: list[Argument] = [keys.task_prefix(queue), len(settlements), 1 if lean else 3, owner]
        if lean:
            args += [s.task_id for s in settlements]
        else:
            for s in settlements:
                args += (s.task_id, s.owner, s.unique_key)
        return Call(DONE, (keys.active(queue), keys.lease(queue), keys.processed(queue)), args)

    def _complete(self, queue: str, settlements: Sequence[Any]) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), len(settlements)]
        for s in settlements:
            has_result = s.result is not None
            args += (s.task_id, s.owner, s.unique_key, s.message, s.retention, int(has_result), s.result or b"")
        names = (keys.active(queue), keys.lease(queue), keys.completed(queue), keys.processed(queue))
        return Call(COMPLETE, names, args)

    def _retry(self, queue: str, settlements: Sequence[Any]) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), keys.delay_wakeup(queue), len(settlements)]
        for s in settlements:
            flags = int(s.is_failure), int(s.front), int(s.crashed)
            args += (s.task_id, s.owner, s.message, s.delay_ms, *flags, s.traceback)
        names = (
            keys.active(queue),
            keys.lease(queue),
            keys.retry(queue),
            keys.scheduled(queue),
            keys.due(queue),
            keys.processed(queue),
            keys.failed(queue),
        )
        return Call(RETRY, names, args)

    def _archive(self, queue: str, settlements: Sequence[Any]) -> Call:
        args: list[Argument] = [
            keys.task_prefix(queue),
            self._archive_limits.most,
            self._archive_limits.seconds,
            len(settlements),
        ]
        for s in settlements:
            args += (s.task_id, s.owner, s.unique_key, s.message, s.original, int(s.is_failure), s.traceback)
        names = (
            keys.active(queue),
            keys.lease(queue),
            keys.archived(queue),
            keys.processed(queue),
            keys.failed(queue),
        )
        return Call(ARCHIVE, names, args)

    def _requeue(self, queue: str, settlements: Sequence[Any]) -> Call:
        args: list[Argument] = [keys.task_prefix(queue), len(settlements)]
        for s in settlements:
            args += (s.task_id, s.owner)
        return Call(REQUEUE, (keys.active(queue), keys.lease(queue), keys.pending(queue)), args)


_WRITERS: dict[type, Any] = {
    Done: Work._done,
    Complete: Work._complete,
    Retry: Work._retry,
    Archive: Work._archive,
    Requeue: Work._requeue,
}
