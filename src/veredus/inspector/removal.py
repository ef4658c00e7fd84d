"""Deleting a whole queue, with everything that belongs to it."""

from __future__ import annotations

import asyncio
import logging

from veredus.errors import ConnectionLost, NotReady, QueueNotEmpty
from veredus.inspector.bulk import Mass, Progress
from veredus.store.places import text
from veredus.store.queues import Queues
from veredus.wire import keys

logger = logging.getLogger("veredus.inspector")

_ROUNDS = 5
"""How often what was enqueued during the removal is removed, too."""
_STATES = ("completed", "pending", "scheduled", "retry", "archived", "aggregating")


async def delete_queue(queues: Queues, mass: Mass, queue: str, *, force: bool, progress: Progress | None) -> None:
    """Without `force` only a queue that has no tasks but completed ones. Never one with running tasks: while it goes
    on, the queue is paused, so that none can start."""
    was_paused = await queues.is_paused(queue)
    try:
        paused_here = await queues.pause(queue)
    except ConnectionLost:  # it may have been paused all the same
        if not was_paused:
            await _resume(queues, queue)
        raise
    cleared = False
    try:
        await _check(queues, queue, force)
        for _ in range(_ROUNDS):
            for state in _STATES if force else _STATES[:1]:
                await mass.apply("delete", queue, state, None, None, progress, None)
            await _check(queues, queue, force)
            if cleared := await _clear(queues, queue, force):
                return
        raise QueueNotEmpty(queue, "is still being filled; stop those who enqueue first")
    finally:
        if paused_here and not cleared:
            await _resume(queues, queue)


async def _resume(queues: Queues, queue: str) -> None:
    """After an error, of which the caller shall be told; a connection that broke is made again."""
    for pause in (0.0, 0.1, 1.0):
        await asyncio.sleep(pause)
        try:
            await queues.resume(queue)
            return
        except (ConnectionLost, NotReady) as exc:
            error = exc
    logger.warning("queue %s is still paused: %s", queue, error)


async def _check(queues: Queues, queue: str, force: bool) -> None:
    (info,) = await queues.stats([queue])
    if info.active:
        raise QueueNotEmpty(queue, f"has {info.active:,} running tasks; wait for them or cancel them first")
    waiting = info.size - info.completed
    if waiting and not force:
        raise QueueNotEmpty(queue, f"still has {waiting:,} tasks; force=True deletes them with it")


async def _clear(queues: Queues, queue: str, force: bool) -> bool:
    """Counters, locks, sets in flight, our own keys: all that has the queue's prefix."""
    prefix = keys.task_prefix(queue)
    found = [name async for page in queues.keys_of(queue) for name in page]
    stray = sum(text(name).startswith(prefix) for name in found)
    if stray and not force:
        raise QueueNotEmpty(
            queue, f"has {stray:,} tasks that are in no list; the doctor mends that, force=True deletes"
        )
    return await queues.clear(queue, found)
