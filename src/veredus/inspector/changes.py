"""Changes of one task that rewrite its message: edit the payload, move to another queue."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from veredus.inspector.refusals import refusal
from veredus.model.message import TaskMessage
from veredus.store.inspect.moves import Move, Moves
from veredus.store.inspect.tasks import CHANGED, DONE, NO_TASK, Tasks
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task

_TRIES = 10
"""How often a message is read again because another client changed it at the same time."""
_PAUSE = 0.02
"""Longest random pause between two tries in seconds, so that concurrent editors get out of step."""


async def edit_payload(tasks: Tasks, queue: str, task_id: str, payload: Any, *, from_start: bool = False) -> bool:
    """False if there is no such task."""
    data = _bytes(payload)
    code = NO_TASK
    for _ in range(_TRIES):
        old = await tasks.message(queue, task_id)
        if old is None:
            return False
        message = _decoded(old, queue, task_id)
        lock = message.unique_key
        of_payload = {keys.unique(queue, message.type, one) for one in (message.payload, message.payload or None)}
        if lock in of_payload:  # else it was made with unique_key, which does not change with the payload
            lock = keys.unique(queue, message.type, data)
        new = encode_task(replace(message, payload=data or b"", unique_key=lock))
        code = await tasks.edit(queue, task_id, old, new, lock, from_start=from_start)
        if code != CHANGED:
            break
        await asyncio.sleep(random.uniform(0, _PAUSE))
    if code < NO_TASK:
        raise refusal("edit", code, queue, task_id)
    return code == DONE


async def move(tasks: Tasks, moves: Moves, queue: str, task_id: str, target: str, *, from_start: bool = False) -> bool:
    """False if there is no such task."""
    code = NO_TASK
    for _ in range(_TRIES):
        old = await tasks.message(queue, task_id)
        if old is None:  # deleted, or an interrupted move between cluster slots already deleted the original
            return await moves.move(Move(task_id, queue, target, b"", b"", "", "")) == DONE
        message = _decoded(old, queue, task_id)
        lock = _lock_in(target, queue, message.unique_key)
        new = encode_task(replace(message, queue=target, unique_key=lock))
        place = await tasks.place(queue, task_id)
        code = await moves.move(Move(task_id, queue, target, old, new, message.unique_key, lock, place, from_start))
        if code != CHANGED:
            break
        await asyncio.sleep(random.uniform(0, _PAUSE))
    if code < NO_TASK:
        raise refusal("move", code, queue, task_id, target)
    return code == DONE


def _lock_in(target: str, queue: str, lock: str) -> str:
    """The same lock in another queue. Only the prefix changes: hashing the payload again would give the same lock to an
    empty payload and to none."""
    prefix = keys.queue_prefix(queue)
    return keys.queue_prefix(target) + lock.removeprefix(prefix) if lock.startswith(prefix) else ""


def _decoded(data: bytes, queue: str, task_id: str) -> TaskMessage:
    try:
        return decode_task(data)
    except UndecodableMessage:
        raise refusal("edit", -1, queue, task_id) from None


def _bytes(payload: Any) -> bytes | None:
    """Bytes are stored as they are, None as no payload, anything else as JSON."""
    if payload is None or isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    from veredus.wire.payload import encode_value

    return encode_value(payload)
