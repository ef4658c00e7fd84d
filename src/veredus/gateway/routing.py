"""Requests become tasks: recorded, enqueued, then confirmed; each gets exactly one answer, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import logging
import math
import random
from collections.abc import Mapping
from typing import Any

from veredus.client.calls import Call
from veredus.client.client import Client
from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import PayloadError, QueueError, StoreError, TaskIdConflict
from veredus.gateway.config import GatewayConfig
from veredus.gateway.connection import Connection
from veredus.gateway.delivery import Delivery
from veredus.gateway.errands import Errands
from veredus.gateway.handlers import Handlers
from veredus.gateway.limits import Overload, Refusal
from veredus.gateway.wheel import Wheel
from veredus.model.frames import CloseCode, ErrorCode, Request
from veredus.model.options import Options
from veredus.model.request import RETENTION, ActionRule, Origin, task_id_of
from veredus.store.store import Store
from veredus.worker.requests import Requests

logger = logging.getLogger("veredus.gateway")

PATIENCE = 3.0
"""Seconds for which an accept is tried again while the store is away."""
Key = tuple[str, int]


class Router:
    """One per process. `open` has the requests that came in here and were not seen to be answered yet."""

    def __init__(
        self,
        config: GatewayConfig,
        actions: Mapping[str, ActionRule],
        tasks: Mapping[str, Task[..., Any, Any]],
        store: Store,
        client: Client,
        requests: Requests,
        handlers: Handlers,
        overload: Overload,
        clock: Clock,
    ) -> None:
        self._config = config
        self._actions = actions
        self._tasks = tasks
        self._store = store
        self._client = client
        self._requests = requests
        self._handlers = handlers
        self._overload = overload
        self._clock = clock
        self._options: dict[str, Options] = {}
        self.delivery: Delivery
        self.open: dict[Key, int] = {}
        self._wheel: Wheel[Key] = Wheel(0.25, clock.monotonic())
        self._errands = Errands("a request")
        self.counters = {"accepted": 0, "rejected": 0, "repeated": 0, "timed_out": 0, "cancelled": 0}

    # Coming in.

    def request(self, connection: Connection, frame: Request) -> None:
        """Refused here, a request has changed nothing: the client may send the same number again."""
        rule = self._actions.get(frame.action)
        if frame.body == b"null" and frame.encoding == "json":
            frame = frame._replace(body=b"")  # what most languages send where there are no arguments
        refusal = self._refusal(connection, frame, rule)
        if refusal is not None or rule is None:
            self._reject(connection, frame.rid, refusal or self._unknown(frame.action))
            return
        self._errands.start(self._take(connection, frame, rule))

    def _refusal(self, connection: Connection, frame: Request, rule: ActionRule | None) -> Refusal | None:
        if rule is None:
            return self._unknown(frame.action)
        now = self._clock.monotonic()
        wait = connection.bucket.take(now) if connection.bucket is not None else 0.0
        if wait > 0:
            self._overload.refused["rate"] += 1
            return Refusal(ErrorCode.LIMIT, "too many requests per second", True, math.ceil(wait * 1000))
        if self.delivery.degraded:
            return Refusal(ErrorCode.UNAVAILABLE, "the store cannot be reached", True, 1000)
        if rule.where == "gateway" and not self._handlers.free:
            self._overload.refused["upstream"] += 1
            return Refusal(ErrorCode.UNAVAILABLE, "overloaded: all handlers are busy", True, 500)
        return self._overload.admit_request(now)

    def _unknown(self, action: str) -> Refusal:
        near = difflib.get_close_matches(action[:100], self._actions, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return Refusal(ErrorCode.UNKNOWN_ACTION, f"no action {action[:100]!r}{hint}", False)

    async def _take(self, connection: Connection, frame: Request, rule: ActionRule) -> None:
        seconds = min(rule.deadline, frame.deadline_ms / 1000 or rule.deadline)
        user = connection.identity.user if connection.identity is not None else ""
        origin = Origin(connection.sid, frame.rid, user, math.ceil((self._clock.time() + seconds) * 1000))
        try:
            if frame.no_reply:
                await self._enqueue(origin, frame, rule, seconds)
                self._accepted(connection, frame.rid)
                return
            state = await self._record(connection, origin)
            if state in ("new", "open"):
                self._watch((origin.session, origin.rid), seconds)
                if rule.where == "worker":
                    if not await self._enqueue_surely(origin, frame, rule, seconds):
                        return
                elif state == "new":  # open: it runs, here or in another gateway, or its deadline will answer
                    self._errands.start(self._handlers.run(self._tasks[rule.name], origin, frame, seconds))
        except (StoreError, QueueError, PayloadError) as exc:
            await self._failed(connection, origin, exc)
            return
        self._answer(connection, frame.rid, state)

    def _answer(self, connection: Connection, rid: int, state: str) -> None:
        if state == "full":
            self._overload.refused["open"] += 1
            self._reject(connection, rid, Refusal(ErrorCode.LIMIT, "too many unanswered requests", True, 1000))
        elif state == "gone":
            connection.end(CloseCode.SESSION_CLOSED, "the session has ended")
        else:
            self.counters["repeated"] += state != "new"
            self._accepted(connection, rid)

    async def _record(self, connection: Connection, origin: Origin) -> str:
        """Asked again after a lost answer, the script says `open` of what was `new`."""
        limits = connection.identity.limits if connection.identity is not None else {}
        most = int(limits.get("open_requests", self._config.open_requests))
        give_up = self._clock.monotonic() + PATIENCE
        pause = 0.05
        unsure = False
        while True:
            try:
                state = await self._store.outbox.accept(
                    origin.session, origin.rid, origin.deadline_ms, connection.generation, most
                )
                return "new" if unsure and state == "open" else state
            except StoreError:
                unsure = True
                if self._clock.monotonic() + pause > give_up:
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause *= 2

    async def _enqueue_surely(self, origin: Origin, frame: Request, rule: ActionRule, seconds: float) -> bool:
        """It is recorded, so it cannot be refused any more: tried until its deadline, which answers it then (False)."""
        give_up = self._clock.monotonic() + seconds
        while (left := give_up - self._clock.monotonic()) > 0:
            try:
                await self._enqueue(origin, frame, rule, left)
            except StoreError as exc:
                logger.debug("request %d of session %s is not enqueued yet: %s", origin.rid, origin.session, exc)
                await asyncio.sleep(random.uniform(0.2, 1.0))
            else:
                return True
        return False

    async def _enqueue(self, origin: Origin, frame: Request, rule: ActionRule, seconds: float) -> None:
        """The id is made of session and request: finding it there means that it was enqueued before."""
        task = self._tasks[rule.name]
        base = self._options.get(rule.name)
        if base is None:
            kept = max(task.options.retention or 0.0, RETENTION)
            base = self._options[rule.name] = dataclasses.replace(task.options, retention=kept)
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
        try:
            await self._client.enqueue(Call(rule.name, frame.body, options))
        except TaskIdConflict:
            pass

    async def _failed(self, connection: Connection, origin: Origin, exc: Exception) -> None:
        """Refused. What was recorded of it is ended without an answer, so that nothing comes later."""
        self._forget((origin.session, origin.rid))
        text, code = "the store cannot be reached", ErrorCode.UNAVAILABLE
        if isinstance(exc, PayloadError):
            text, code = str(exc), ErrorCode.TOO_LARGE
        elif not isinstance(exc, StoreError):
            text = str(exc)
        logger.debug("request %d of session %s is refused: %s", origin.rid, origin.session, exc)
        if not isinstance(exc, StoreError):
            try:
                await self._store.outbox.respond(origin.session, origin.rid, b"", failed=True)
            except StoreError:
                pass  # its deadline will
        self._reject(connection, origin.rid, Refusal(code, text, code.retryable, 1000 if code.retryable else 0))

    def _accepted(self, connection: Connection, rid: int) -> None:
        self.counters["accepted"] += 1
        if not connection.over:
            connection.link.accept(rid, self._clock.monotonic())
            self.delivery.touch(connection)

    def _reject(self, connection: Connection, rid: int, refusal: Refusal) -> None:
        self.counters["rejected"] += 1
        if not connection.over:
            connection.link.reject(
                rid,
                refusal.code,
                self._clock.monotonic(),
                retry_after_ms=refusal.retry_after_ms,
                error=refusal.reason,
            )
            self.delivery.touch(connection)

    # Giving up.

    def cancel(self, connection: Connection, rid: int) -> None:
        self._errands.start(self._cancel(connection.sid, rid, connection.identity.user if connection.identity else ""))

    async def _cancel(self, sid: str, rid: int, user: str) -> None:
        """The answer first, then the task: whatever it still does is answered already."""
        try:
            responded = await self._requests.respond(
                Origin(sid, rid, user, 0), code=ErrorCode.CANCELLED, error="cancelled"
            )
            if responded.status == "sent":
                self.counters["cancelled"] += 1
                self._handlers.cancel(sid, rid)
                await self._drop(sid, rid)
        except StoreError as exc:
            logger.debug("request %d of session %s is not cancelled: %s", rid, sid, exc)

    async def _drop(self, sid: str, rid: int) -> None:
        """Which action it was is not recorded: the id is looked for wherever actions go."""
        for queue in {rule.queue for rule in self._actions.values() if rule.where == "worker"}:
            await self._store.cancels.cancel(queue, task_id_of(sid, rid), "delete", lambda message: message)

    # Answers and deadlines.

    def answered(self, sid: str, rid: int) -> None:
        """A response has been seen on its way to the client."""
        self._forget((sid, rid))

    def _watch(self, key: Key, seconds: float) -> None:
        if key not in self.open:
            self.open[key] = self._wheel.put(key, self._clock.monotonic() + seconds + 0.05)
            self._counted()

    def _forget(self, key: Key) -> None:
        slot = self.open.pop(key, None)
        if slot is not None:
            self._wheel.take(key, slot)
            self._counted()

    def _counted(self) -> None:
        self._overload.upstream = len(self.open)
        self.delivery.counting_answers = bool(self.open)

    def tick(self, now: float) -> None:
        due = self._wheel.due(now)
        for key in due:
            if self.open.pop(key, None) is not None:
                self._errands.start(self.expire(*key))
        if due:
            self._counted()

    async def expire(self, sid: str, rid: int) -> None:
        """Nobody answered in time; also called for requests of dead gateways that a sweep found."""
        origin = Origin(sid, rid, "", 0)
        try:
            responded = await self._requests.respond(
                origin, code=ErrorCode.DEADLINE, error="no answer before the deadline"
            )
        except StoreError as exc:
            logger.debug("deadline of request %d of session %s: %s; a sweep will find it", rid, sid, exc)
            return
        if responded.status == "sent":
            self.counters["timed_out"] += 1
            self._handlers.cancel(sid, rid)

    async def close(self, seconds: float) -> None:
        """Handlers that run here get so long to end."""
        await self._errands.close(seconds)
