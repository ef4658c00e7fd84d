"""How a request gets into Redis: recorded, then enqueued, each tried again until it is known what became of it.

A call without a reply may have been executed, or will be as soon as a server that stands still goes on. No client is
told "rejected" while that is so: a reject means that nothing happened and nothing will.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from veredus.client.calls import Call
from veredus.client.client import Client
from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import (
    AuthError,
    CommandRefused,
    ConnectionLost,
    DuplicateTask,
    NotConfirmed,
    PayloadError,
    QueueClosed,
    QueueError,
    StoreError,
    TaskIdConflict,
    VeredusError,
)
from veredus.gateway.connection import Connection
from veredus.gateway.limits import Refusal
from veredus.model.frames import ErrorCode, Request
from veredus.model.options import Options
from veredus.model.request import RETENTION, ActionRule, Origin, task_id_of
from veredus.store.faults import NotSent
from veredus.store.store import Store
from veredus.wire import keys

logger = logging.getLogger("veredus.gateway")

PATIENCE = 3.0
"""Seconds for which a call that certainly did nothing is tried again."""
MAX_PAUSE = 1.0
DOUBT = 120.0
"""Seconds after a resume in which a call of the gateway before may still arrive: until that one notices that its client
is gone, and until its network has delivered what it sent."""
OUTAGE = 3
"""After so many tries without a reply, new requests are refused before anything is sent."""


class NotTaken(Exception):
    """The request is refused. `sure`: no call for it is on its way that could still be executed."""

    def __init__(self, refusal: Refusal, sure: bool) -> None:
        self.refusal, self.sure = refusal, sure
        super().__init__(refusal.reason)


class Tries:
    """The tries of one call to the store."""

    def __init__(self, clock: Clock, outage: Callable[[StoreError], None], doubt_until: float) -> None:
        self._clock = clock
        self._outage = outage
        self._doubt_until = doubt_until
        self._give_up = clock.monotonic() + PATIENCE
        self._pause = 0.05
        self._failed = 0
        self._sure = True

    @property
    def sure(self) -> bool:
        """Whether no try was, or will be, executed."""
        return self._sure and self._clock.monotonic() >= self._doubt_until

    async def wait(self, exc: VeredusError) -> None:
        """Before the next try. Raises NotTaken if there is no point in one, and it is certain that nothing happened."""
        self._failed += 1
        self._sure = self._sure and (isinstance(exc, NotSent) or not isinstance(exc, ConnectionLost))
        if self._failed == OUTAGE and isinstance(exc, ConnectionLost):
            self._outage(exc)
        is_final = isinstance(exc, CommandRefused | AuthError) or self._clock.monotonic() + self._pause > self._give_up
        if self.sure and is_final:
            logger.debug("a request is refused: %s", exc)
            raise NotTaken(Refusal(ErrorCode.UNAVAILABLE, "the store cannot be reached", True, 1000), True)
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(self._pause * 2, MAX_PAUSE)


class Taking:
    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any, Any]],
        store: Store,
        client: Client,
        clock: Clock,
        outage: Callable[[StoreError], None],
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._client = client
        self._clock = clock
        self._outage = outage
        self._options: dict[str, Options] = {}

    def tries(self, doubt_until: float = -math.inf) -> Tries:
        """`doubt_until`: before that, others may have made the same call."""
        return Tries(self._clock, self._outage, doubt_until)

    def in_doubt(self, connection: Connection) -> bool:
        """Whether a request without reply may have been passed on by a connection before: nothing records it."""
        return self._clock.monotonic() < connection.resumed_at + DOUBT

    async def record(
        self, connection: Connection, origin: Origin, arrival: int, most: int, until: float, sure: bool
    ) -> tuple[str, bool]:
        """What the store says of the request, and whether it can still be rejected. "" if the store said nothing until
        then, or until the connection ended. Not `sure`: it may be recorded already. Raises NotTaken."""
        tries = self.tries(-math.inf if sure else math.inf)
        while not connection.over and self._clock.monotonic() < until:
            try:
                state = await self._store.outbox.accept(
                    origin.session, origin.rid, origin.deadline_ms, connection.generation, most, arrival
                )
            except StoreError as exc:
                await tries.wait(exc)
                continue
            if state == "full":
                raise NotTaken(Refusal(ErrorCode.LIMIT, "too many unanswered requests", True, 1000), tries.sure)
            return state, tries.sure
        return "", tries.sure

    async def enqueue(
        self, origin: Origin, frame: Request, rule: ActionRule, seconds: float, while_here: Connection | None = None
    ) -> bool:
        """True once its task is in its queue. A recorded request is tried until its deadline, which answers it then
        (False); one without a record for as long as its connection is there. Raises NotTaken."""
        began = self._clock.monotonic()
        tries = self.tries(-math.inf if while_here is None else while_here.resumed_at + DOUBT)
        while True:
            left = seconds - (self._clock.monotonic() - began)
            if (while_here is None and left <= 0) or (while_here is not None and while_here.over):
                return False
            try:
                await self._enqueue(origin, frame, rule, left if while_here is None else seconds)
            except StoreError as exc:
                logger.debug("request %d of session %s is not enqueued yet: %s", origin.rid, origin.session, exc)
                await tries.wait(exc)
            except PayloadError as exc:
                raise NotTaken(Refusal(ErrorCode.TOO_LARGE, str(exc), False), tries.sure) from exc
            except (DuplicateTask, QueueError) as exc:
                if while_here is not None and not tries.sure:  # with a record, the refusal would be the response
                    await tries.wait(exc)
                    continue
                if isinstance(exc, DuplicateTask):
                    raise NotTaken(Refusal(ErrorCode.CONFLICT, str(exc), False), tries.sure) from exc
                raise NotTaken(Refusal(ErrorCode.UNAVAILABLE, str(exc), True, 1000), tries.sure) from exc
            else:
                return True

    async def _enqueue(self, origin: Origin, frame: Request, rule: ActionRule, seconds: float) -> None:
        """The id is made of session and request: finding it there means that it was enqueued before."""
        call = self._call(origin, frame, rule, seconds)
        try:
            handle = await self._client.enqueue(call)
        except TaskIdConflict:
            return
        except NotConfirmed as exc:
            logger.warning("request %d of session %s: %s", origin.rid, origin.session, exc)
            return
        except QueueClosed:  # this comes also for a task that is in the queue already
            if not await self._is_there(rule.queue, task_id_of(origin.session, origin.rid)):
                raise
            return
        if not handle.created:
            raise DuplicateTask(f"{rule.name}: the same task is waiting or running already, and it is unique")

    async def _is_there(self, queue: str, task_id: str) -> bool:
        key = keys.task(queue, task_id)
        return bool(await self._store.redis.command("EXISTS", key, key=key))

    def _call(self, origin: Origin, frame: Request, rule: ActionRule, seconds: float) -> Call[Any]:
        task = self._tasks[rule.name]
        base = self._options.get(rule.name)
        if base is None:
            kept = max(task.options.retention or 0.0, RETENTION)
            base = self._options[rule.name] = dataclasses.replace(task.options, retention=kept, replace=False)
        headers = dict(base.headers or {})
        if not frame.no_reply:
            headers.update(origin.headers())
        options = dataclasses.replace(
            base,
            task_id=task_id_of(origin.session, origin.rid),
            headers=headers,
            timeout=min(base.timeout or math.inf, math.ceil(seconds)),
            expires=None if frame.no_reply else seconds,
            order_key=origin.session if rule.serial or frame.serial else base.order_key,
        )
        return Call(rule.name, frame.body, options)
