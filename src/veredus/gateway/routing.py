"""Requests become tasks: recorded, enqueued, then confirmed; each gets exactly one answer, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from veredus.client.client import Client
from veredus.client.task import Task
from veredus.clock import Clock
from veredus.errors import CommandRefused, ServerFull, StoreError
from veredus.gateway.config import GatewayConfig
from veredus.gateway.connection import Connection
from veredus.gateway.delivery import Delivery
from veredus.gateway.errands import Errands
from veredus.gateway.handlers import Handlers
from veredus.gateway.limits import Bucket, Overload, Refusal
from veredus.gateway.taking import NotTaken, Taking
from veredus.gateway.wheel import Wheel
from veredus.model.frames import CloseCode, ErrorCode, Request
from veredus.model.request import ActionRule, Origin, task_id_of
from veredus.store.store import Store
from veredus.worker.requests import Requests

logger = logging.getLogger("veredus.gateway")

Key = tuple[str, int]
HINT_RATE, HINTS_AT_ONCE = 5.0, 3
"""Unknown actions per second for which a similar name is looked for."""
MOST_WAITING = 64
"""Requests of one connection that wait because they cannot be rejected yet."""


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
        self._taking = Taking(tasks, store, client, clock, lambda exc: self.delivery.outage(exc))
        self._requests = requests
        self._handlers = handlers
        self._overload = overload
        self._clock = clock
        self.delivery: Delivery
        self.open: dict[Key, int] = {}
        self._wheel: Wheel[Key] = Wheel(0.25, clock.monotonic())
        self._errands = Errands("a request")
        self._hints = Bucket(HINT_RATE, HINTS_AT_ONCE, clock.monotonic())
        """Finding a similar name takes far longer than all else about a request."""
        self.counters = {"accepted": 0, "rejected": 0, "repeated": 0, "timed_out": 0, "cancelled": 0}

    # Coming in.

    def request(self, connection: Connection, frame: Request) -> None:
        """Refused here, a request has changed nothing: the client may send the same number again."""
        rule = self._actions.get(frame.action)
        if frame.body == b"null" and frame.encoding == "json":
            frame = frame._replace(body=b"")  # what most languages send where there are no arguments
        if frame.rid in connection.recorded:
            self._errands.start(self._take_again(connection, frame, rule))
            return
        refusal = self._refusal(connection, frame, rule)
        if refusal is not None or rule is None:
            if refusal is not None and refusal.retryable and frame.no_reply and self._taking.in_doubt(connection):
                self._wait(connection, frame, refusal)
            elif (connection.sid, frame.rid) not in self.open:  # else it came twice, and was taken the first time
                self._reject(connection, frame.rid, refusal or self._unknown(frame.action))
            return
        self._errands.start(self._take(connection, frame, rule))

    def _wait(self, connection: Connection, frame: Request, refusal: Refusal) -> None:
        """It may have been passed on by a connection before: it is refused only when that can no longer be."""
        if connection.waiting >= MOST_WAITING:
            connection.end(CloseCode.RATE_LIMITED, "too many requests without reply", retry_after_ms=1000)
            return

        async def ask_later() -> None:
            await asyncio.sleep(refusal.retry_after_ms / 1000)
            connection.waiting -= 1
            if not connection.over:
                self.request(connection, frame)

        connection.waiting += 1
        self._errands.start(ask_later())

    async def _take_again(self, connection: Connection, frame: Request, rule: ActionRule | None) -> None:
        """It was taken on a connection before this one: it cannot be rejected any more, whatever the limits say now."""
        if rule is not None:
            await self._take(connection, frame, rule)
        else:
            user = connection.identity.user if connection.identity is not None else ""
            await self._respond(connection, Origin(connection.sid, frame.rid, user, 0), self._unknown(frame.action))

    def _refusal(self, connection: Connection, frame: Request, rule: ActionRule | None) -> Refusal | None:
        now = self._clock.monotonic()
        wait = connection.bucket.take(now) if connection.bucket is not None else 0.0
        if wait > 0:
            self._overload.refused["rate"] += 1
            return Refusal(ErrorCode.LIMIT, "too many requests per second", True, math.ceil(wait * 1000))
        if rule is None:
            return self._unknown(frame.action)
        if self.delivery.degraded:
            return Refusal(ErrorCode.UNAVAILABLE, "the store cannot be reached", True, 1000)
        if rule.where == "gateway" and not self._handlers.free:
            self._overload.refused["upstream"] += 1
            return Refusal(ErrorCode.UNAVAILABLE, "overloaded: all handlers are busy", True, 500)
        return self._overload.admit_request(now)

    def _unknown(self, action: str) -> Refusal:
        near = []
        if not self._hints.take(self._clock.monotonic()):
            near = difflib.get_close_matches(action[:100], self._actions, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return Refusal(ErrorCode.UNKNOWN_ACTION, f"no action {action[:100]!r}{hint}", False)

    async def _take(self, connection: Connection, frame: Request, rule: ActionRule) -> None:
        seconds = min(rule.deadline, frame.deadline_ms / 1000 or rule.deadline)
        until = self._clock.monotonic() + seconds
        user = connection.identity.user if connection.identity is not None else ""
        origin = Origin(connection.sid, frame.rid, user, math.ceil((self._clock.time() + seconds) * 1000))
        connection.arrivals += 1
        arrival, state, sure = connection.arrivals, "", frame.rid not in connection.known
        try:
            if frame.no_reply:
                if await self._taking.enqueue(origin, frame, rule, seconds, connection):
                    self._accepted(connection, frame.rid)
                return
            state, sure = await self._taking.record(connection, origin, arrival, self._most(connection), until, sure)
            if not state:
                await self._respond_late(connection, origin)
                return
            if state in ("new", "open"):
                left = until - self._clock.monotonic()
                self._watch((origin.session, origin.rid), left)
                if rule.where == "worker":
                    if not await self._taking.enqueue(origin, frame, rule, left):
                        return
                elif state == "new":  # open: it runs, here or in another gateway, or its deadline will answer
                    self._errands.start(self._handlers.run(self._tasks[rule.name], origin, frame, left))
        except NotTaken as exc:
            if frame.no_reply or (not state and exc.sure):
                self._reject(connection, frame.rid, exc.refusal)
            elif state == "new" and sure and exc.sure:
                await self._take_back(connection, origin, arrival, exc.refusal)
            else:
                await self._respond(connection, origin, exc.refusal)
            return
        self._answer(connection, frame.rid, state)

    def _most(self, connection: Connection) -> int:
        limits = connection.identity.limits if connection.identity is not None else {}
        return int(limits.get("open_requests", self._config.open_requests))

    def _answer(self, connection: Connection, rid: int, state: str) -> None:
        if state == "gone":
            connection.lost()
        elif state == "superseded":
            connection.end(CloseCode.SUPERSEDED, "the session is attached by another connection")
        else:
            self.counters["repeated"] += state != "new"
            self._accepted(connection, rid)

    # Refusing.

    async def _take_back(self, connection: Connection, origin: Origin, arrival: int, refusal: Refusal) -> None:
        """Reject a request once its record is gone: the client may send the same number again."""

        async def refuse() -> None:
            told = await self._store.outbox.refuse(origin.session, origin.rid, connection.generation, arrival)
            if told == "refused":
                self._forget((origin.session, origin.rid))
                self._reject(connection, origin.rid, refusal)

        await self._surely(connection, refuse)

    async def _respond(self, connection: Connection, origin: Origin, refusal: Refusal) -> None:
        """The refusal is the response, where a call without a reply, or a gateway before this one, may have left
        something: whatever arrives late finds the request answered."""

        async def respond() -> None:
            await self._requests.respond(origin, code=refusal.code, error=refusal.reason)
            self._forget((origin.session, origin.rid))

        await self._surely(connection, respond)

    async def _respond_late(self, connection: Connection, origin: Origin) -> None:
        self.counters["timed_out"] += not connection.over
        await self._respond(connection, origin, Refusal(ErrorCode.DEADLINE, "no answer before the deadline", True))

    async def _surely(self, connection: Connection, act: Callable[[], Awaitable[None]]) -> None:
        """Until it is done. A client that is gone sends its request again, or the deadline of the record answers it."""
        tries = self._taking.tries(math.inf)
        while not connection.over:
            try:
                await act()
            except StoreError as exc:
                await tries.wait(exc)
            else:
                return

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
        connection.turns.start(self._errands, lambda: self._cancel(connection, rid))

    async def _cancel(self, connection: Connection, rid: int) -> None:
        """The answer first, then the task: whatever it still does is answered already. If a first answer had no reply,
        one that is there already may be that one."""
        sid, user = connection.sid, connection.identity.user if connection.identity else ""
        tried = False

        async def cancel() -> None:
            nonlocal tried
            before, tried = tried, True
            try:
                responded = await self._requests.respond(
                    Origin(sid, rid, user, 0), code=ErrorCode.CANCELLED, error="cancelled"
                )
                self.counters["cancelled"] += responded.status == "sent"
                if responded.status == "sent" or before:
                    self._handlers.cancel(sid, rid)
                    await self._drop(sid, rid)
            except CommandRefused as exc:
                if isinstance(exc, ServerFull):
                    raise
                logger.warning("request %d of session %s cannot be cancelled: %s", rid, sid, exc)

        await self._surely(connection, cancel)

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
