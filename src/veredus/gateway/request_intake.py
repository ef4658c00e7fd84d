"""RequestIntake: records a request in Redis and enqueues its task, and retries until the result is known.

A call without a reply may have been executed, or may still be. While that is possible, the client gets no reject: a
reject means that nothing happened and nothing will.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from veredus.client.call import Call
from veredus.client.client import Client
from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import (
    AuthError,
    CommandRefused,
    ConfigError,
    ConnectionLost,
    DuplicateTask,
    NotConfirmed,
    PayloadError,
    PayloadTooLarge,
    QueueClosed,
    QueueError,
    StoreError,
    TaskIdConflict,
    VeredusError,
)
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.limits import Refusal
from veredus.model.backoff import Backoff
from veredus.model.frames import ErrorCode, Request
from veredus.model.options import Options
from veredus.model.request import RETENTION, ActionRule, Origin, task_id_of
from veredus.store.connection.error_replies import NotSent
from veredus.store.store import Store
from veredus.wire import keys

logger = logging.getLogger("veredus.gateway")

PATIENCE = 3.0
"""Seconds for which a call that certainly did nothing is retried."""
MAX_PAUSE = 1.0
DOUBT = 120.0
"""Seconds after a resume in which a call of the previous gateway may still arrive: that gateway must first notice that
its client is gone, and the network must deliver what it sent."""
OUTAGE = 3
"""Tries without a reply after which new requests are refused without a call."""


class NotAccepted(Exception):
    """The request is refused. `sure`: no call for it can still be executed."""

    def __init__(self, refusal: Refusal, sure: bool) -> None:
        self.refusal, self.sure = refusal, sure
        super().__init__(refusal.reason)


class StoreTries:
    """The tries of one call to the store."""

    def __init__(self, clock: Clock, outage: Callable[[StoreError], None], doubt_until: float) -> None:
        self._clock = clock
        self._outage = outage
        self._doubt_until = doubt_until
        self._give_up = clock.monotonic() + PATIENCE
        self._backoff = Backoff(longest=MAX_PAUSE)
        self._failed = 0
        self._sure = True

    @property
    def sure(self) -> bool:
        """Whether no try was executed or can still be."""
        return self._sure and self._clock.monotonic() >= self._doubt_until

    async def wait(self, exc: VeredusError) -> None:
        """Pause before the next try. Raises NotAccepted if a retry is pointless and certainly nothing happened."""
        self._failed += 1
        self._sure = self._sure and (isinstance(exc, NotSent) or not isinstance(exc, ConnectionLost))
        if self._failed == OUTAGE and isinstance(exc, ConnectionLost):
            self._outage(exc)
        too_late = self._clock.monotonic() + self._backoff.next > self._give_up
        is_final = too_late or isinstance(exc, CommandRefused | AuthError)
        if self.sure and is_final:
            logger.debug("refusing a request: %s", exc)
            raise NotAccepted(Refusal(ErrorCode.UNAVAILABLE, "the store cannot be reached", True, 1000), True)
        await asyncio.sleep(self._backoff.take())


class RequestIntake:
    """Used by the router."""

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

    def tries(self, doubt_until: float = -math.inf) -> StoreTries:
        """`doubt_until`: until then, a call of another gateway may still arrive."""
        return StoreTries(self._clock, self._outage, doubt_until)

    def in_doubt(self, connection: ClientConnection) -> bool:
        """Whether an earlier connection may have enqueued a request without reply, of which there is no record."""
        return self._clock.monotonic() < connection.resumed_at + DOUBT

    async def record(
        self, connection: ClientConnection, origin: Origin, arrival: int, most: int, until: float, sure: bool
    ) -> tuple[str, bool]:
        """Record the request. Returns its state and whether it can still be rejected. The state is "" if the store did
        not reply before `until` or the end of the connection. Not `sure`: it may be recorded already. Raises
        NotAccepted."""
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
                raise NotAccepted(Refusal(ErrorCode.LIMIT, "too many unanswered requests", True, 1000), tries.sure)
            return state, tries.sure
        return "", tries.sure

    async def enqueue(
        self,
        origin: Origin,
        frame: Request,
        rule: ActionRule,
        seconds: float,
        while_here: ClientConnection | None = None,
    ) -> bool:
        """Enqueue the task; True once it is in its queue. A recorded request is retried until its deadline, which then
        answers it (False); one without a record is retried while its connection is open. Raises NotAccepted."""
        began = self._clock.monotonic()
        tries = self.tries(-math.inf if while_here is None else while_here.resumed_at + DOUBT)
        while True:
            left = seconds - (self._clock.monotonic() - began)
            if (while_here is None and left <= 0) or (while_here is not None and while_here.over):
                return False
            try:
                await self._enqueue(origin, frame, rule, left if while_here is None else seconds)
            except StoreError as exc:
                logger.debug("cannot enqueue request %d of session %s yet: %s", origin.rid, origin.session, exc)
                await tries.wait(exc)
            except PayloadError as exc:
                code = ErrorCode.TOO_LARGE if isinstance(exc, PayloadTooLarge) else ErrorCode.BAD_REQUEST
                raise NotAccepted(Refusal(code, str(exc), False), tries.sure) from exc
            except ConfigError as exc:  # of a key that is made of the arguments
                logger.warning("request %d of session %s: %s", origin.rid, origin.session, exc)
                refusal = Refusal(ErrorCode.BAD_REQUEST, "its arguments do not make a key", False)
                raise NotAccepted(refusal, tries.sure) from exc
            except (DuplicateTask, QueueError) as exc:
                if while_here is not None and not tries.sure:  # with a record, the refusal becomes the response
                    await tries.wait(exc)
                    continue
                if isinstance(exc, DuplicateTask):
                    raise NotAccepted(Refusal(ErrorCode.CONFLICT, str(exc), False), tries.sure) from exc
                raise NotAccepted(Refusal(ErrorCode.UNAVAILABLE, str(exc), True, 1000), tries.sure) from exc
            else:
                return True

    async def _enqueue(self, origin: Origin, frame: Request, rule: ActionRule, seconds: float) -> None:
        """The task id is made of session and request: a conflict means that it was enqueued before."""
        call = self._call(origin, frame, rule, seconds)
        try:
            handle = await self._client.enqueue(call)
        except TaskIdConflict:
            return
        except NotConfirmed as exc:
            logger.warning("request %d of session %s: %s", origin.rid, origin.session, exc)
            return
        except QueueClosed:  # also raised for a task that is already in the queue
            if not await self._exists(rule.queue, task_id_of(origin.session, origin.rid)):
                raise
            return
        if not handle.created:
            raise DuplicateTask(f"{rule.name}: a unique task with the same arguments is already waiting or running")

    async def _exists(self, queue: str, task_id: str) -> bool:
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
        return Call(rule.name, frame.body, task.options_for(options, frame.body))
