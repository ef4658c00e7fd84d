"""Emitting events, and waking the durable tasks that wait for them."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from veredus.errors import ConfigError, ConnectionLost, NotReady, PayloadTooLarge, StoreError
from veredus.model.backoff import Backoff
from veredus.model.durable import EVENT_TTL, KEPT, LARGEST_RESULT, RESERVED, check_durable_name
from veredus.model.options import seconds
from veredus.store.store import Store
from veredus.store.tasks.emitted import Emission, Waiter
from veredus.store.tasks.runs import WakeRow
from veredus.wire.payload import encode_value

T = TypeVar("T")

logger = logging.getLogger("veredus.client")


def encode_event(name: str, payload: Any) -> bytes:
    """An event as it is kept. Raises ConfigError or PayloadError."""
    if check_durable_name("event", name).startswith(RESERVED):
        raise ConfigError("event", name, f"a name that does not begin with {RESERVED!r}, which is reserved for Veredus")
    if payload is None:
        raise ConfigError("payload", None, "any JSON value but null: None is what a wait that timed out returns")
    data = KEPT + encode_value(payload)
    if len(data) > LARGEST_RESULT:
        raise PayloadTooLarge(len(data), LARGEST_RESULT)
    return data


async def emit(store: Store, name: str, payload: Any = True, ttl: float | timedelta = EVENT_TTL) -> bool:
    """Keep an event for `ttl` seconds and wake all tasks that wait for it. Returns whether its name is new."""
    data, kept = encode_event(name, payload), seconds("ttl", ttl)
    if not kept:
        raise ConfigError("ttl", ttl, "more than 0 seconds")
    call = secrets.token_hex(8)
    emission = await _insist(store, lambda: store.emitted.emit(name, call, data, math.ceil(kept * 1000)))
    try:
        await _wake_all(store, name, emission)
    except StoreError as exc:
        logger.warning("event %s is kept, but waiting tasks find it only at their next check: %s", name, exc)
    return emission.is_first


async def _wake_all(store: Store, name: str, emission: Emission) -> None:
    """Page by page; the notes of those that have it are deleted."""
    noted = emission.waiters
    while noted:
        waiters = [Waiter.unpack(name, one) for one in noted]
        await _insist(store, partial(wake, store, waiters, emission.payload))
        noted = await _insist(store, partial(store.emitted.ack, name, noted))


async def wake(store: Store, waiters: Sequence[Waiter], outcome: bytes) -> None:
    """Store the outcome for each of them, and call them back."""
    by_queue: dict[str, list[WakeRow]] = {}
    for one in waiters:
        by_queue.setdefault(one.queue, []).append(WakeRow(one.task_id, one.mark, one.field, outcome))
    for queue, rows in by_queue.items():
        await store.runs.wake(queue, rows)


async def _insist(store: Store, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call whose reply was lost, for as long as producers do."""
    backoff, loop = Backoff(), asyncio.get_running_loop()
    give_up = loop.time() + store.patience
    while True:
        try:
            return await call()
        except (ConnectionLost, NotReady):
            if loop.time() + backoff.next > give_up:
                raise
            await asyncio.sleep(backoff.take())
