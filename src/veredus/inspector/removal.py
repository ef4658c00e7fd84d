"""Deletes a queue and everything in it."""

from __future__ import annotations

import asyncio
import logging

from veredus.errors import ConnectionLost, NotReady, QueueNotEmpty
from veredus.inspector.bulk_runner import BulkRunner, Progress
from veredus.store.inspect.inspect_part import text
from veredus.store.inspect.queues import Queues
from veredus.wire import keys

logger = logging.getLogger("veredus.inspector")

_ROUNDS = 5
"""Passes over the queue, for tasks that are enqueued while it is being deleted."""
_STATES = ("completed", "pending", "scheduled", "retry", "archived", "aggregating")


async def delete_queue(queues: Queues, bulk: BulkRunner, queue: str, *, force: bool, progress: Progress | None) -> None:
    """Delete a queue. Without `force`, all its tasks must be completed. No task may be running; the queue is paused
    during the deletion, so that none can start."""
    was_paused = await queues.is_paused(queue)
    try:
        paused_here = await queues.pause(queue)
    except ConnectionLost:  # the server may have paused it before the connection broke
        if not was_paused:
            await _resume(queues, queue)
        raise
    cleared = False
    try:
        await _check(queues, queue, force)
        for _ in range(_ROUNDS):
            for state in _STATES if force else _STATES[:1]:
                await bulk.apply("delete", queue, state, None, None, progress, None)
            await _check(queues, queue, force)
            if cleared := await _clear(queues, queue, force):
                return
        raise QueueNotEmpty(queue, "still receives new tasks; stop the producers first")
    finally:
        if paused_here and not cleared:
            await _resume(queues, queue)


async def _resume(queues: Queues, queue: str) -> None:
    """Resume after an error without hiding it. A few tries, because the connection may have to be opened again."""
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
    """Delete every key with the queue's prefix: counters, locks, aggregation sets and our own keys."""
    prefix = keys.task_prefix(queue)
    found = [name async for page in queues.keys_of(queue) for name in page]
    stray = sum(text(name).startswith(prefix) for name in found)
    if stray and not force:
        raise QueueNotEmpty(
            queue, f"has {stray:,} tasks that are in no list; the doctor repairs them, force=True deletes them"
        )
    return await queues.clear(queue, found)
