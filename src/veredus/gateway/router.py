"""RequestRouter: records a client's request, enqueues its task, then accepts it. Each gets exactly one response."""

from __future__ import annotations

import asyncio
import difflib
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from veredus.client.client import Client
from veredus.client.task import Task
from veredus.errors import CommandRefused, ServerFull, StoreError
from veredus.gateway.background import BackgroundTasks
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.delivery import Delivery
from veredus.gateway.limits import Bucket, Refusal
from veredus.gateway.local_actions import LocalActions
from veredus.gateway.open_requests import OpenRequests
from veredus.gateway.received_requests import RequestState
from veredus.gateway.request_intake import NotAccepted, RequestIntake
from veredus.gateway.services import Services
from veredus.handlers.request_answers import RequestAnswers
from veredus.model.frames import CloseCode, ErrorCode, Request
from veredus.model.request import ActionRule, Origin, task_id_of

logger = logging.getLogger("veredus.gateway")

HINT_RATE, HINTS_AT_ONCE = 5.0, 3
"""Unknown actions per second, and at once, for which a similar name is suggested."""
MAX_WAITING = 64
"""Requests of one connection that wait because they cannot be rejected yet."""


class RequestRouter:
    """One per process."""

    def __init__(
        self,
        services: Services,
        actions: Mapping[str, ActionRule],
        tasks: Mapping[str, Task[..., Any, Any]],
        client: Client,
        answers: RequestAnswers,
        local_actions: LocalActions,
        delivery: Delivery,
        open_requests: OpenRequests,
    ) -> None:
        clock = services.clock
        self._config = services.config
        self._actions = actions
        self._tasks = tasks
        self._store = services.store
        self._intake = RequestIntake(tasks, services.store, client, clock, delivery.outage)
        self._answers = answers
        self._local_actions = local_actions
        self._overload = services.overload
        self._clock = clock
        self._delivery = delivery
        self.open = open_requests
        self._background = BackgroundTasks("a request")
        self._hints = Bucket(HINT_RATE, HINTS_AT_ONCE, clock.monotonic())
        """Limits the search for a similar name, which costs far more than the rest of a request."""
        self.counters = {"accepted": 0, "rejected": 0, "repeated": 0, "timed_out": 0, "cancelled": 0}

    # Accepting.

    def request(self, connection: ClientConnection, frame: Request) -> None:
        """Refuse or accept a request. A request refused here changed nothing: the client may reuse its number."""
        if frame.body == b"null" and frame.encoding == "json":
            frame = frame._replace(body=b"")  # most languages send null when there are no arguments
        rid, requests = frame.rid, connection.requests
        state = requests.state(rid)
        if state in (RequestState.UNDECIDED, RequestState.CANCELLED):
            requests.note_copy(rid)
            return
        is_done = rid in connection.known_rids and rid not in connection.unanswered_rids
        if state is RequestState.ACCEPTED or is_done:
            self.counters["repeated"] += 1
            self._accepted(connection, rid)
            return
        requests.begin(rid)
        self._decide(connection, frame)

    def _decide(self, connection: ClientConnection, frame: Request) -> None:
        rule = self._actions.get(frame.action)
        if frame.rid in connection.unanswered_rids:
            self._background.start(self._accept_again(connection, frame, rule))
            return
        refusal = self._refusal(connection, frame, rule)
        if refusal is None and rule is not None:
            self._background.start(self._accept(connection, frame, rule))
        elif refusal is not None and refusal.retryable and frame.no_reply and self._intake.in_doubt(connection):
            self._wait(connection, frame, refusal)
        else:
            self._reject(connection, frame.rid, refusal or self._unknown(frame.action))

    def _wait(self, connection: ClientConnection, frame: Request, refusal: Refusal) -> None:
        """Handle it again later. An earlier connection may have enqueued it, so it cannot be rejected yet."""
        if connection.waiting_requests >= MAX_WAITING:
            connection.end(CloseCode.RATE_LIMITED, "too many requests without reply", retry_after_ms=1000)
            return

        async def handle_later() -> None:
            await asyncio.sleep(refusal.retry_after_ms / 1000)
            connection.waiting_requests -= 1
            if not connection.over:
                self._decide(connection, frame)

        connection.waiting_requests += 1
        self._background.start(handle_later())

    async def _accept_again(self, connection: ClientConnection, frame: Request, rule: ActionRule | None) -> None:
        """An earlier connection recorded the request: it can no longer be rejected, whatever the limits are now."""
        if rule is not None:
            await self._accept(connection, frame, rule)
        else:
            user = connection.identity.user if connection.identity is not None else ""
            await self._respond(connection, Origin(connection.sid, frame.rid, user, 0), self._unknown(frame.action))

    def _refusal(self, connection: ClientConnection, frame: Request, rule: ActionRule | None) -> Refusal | None:
        now = self._clock.monotonic()
        wait = connection.bucket.take(now) if connection.bucket is not None else 0.0
        if wait > 0:
            self._overload.refused["rate"] += 1
            return Refusal(ErrorCode.LIMIT, "too many requests per second", True, math.ceil(wait * 1000))
        if rule is None:
            return self._unknown(frame.action)
        if self._delivery.degraded:
            return Refusal(ErrorCode.UNAVAILABLE, "the store cannot be reached", True, 1000)
        if rule.where == "gateway" and not self._local_actions.free:
            self._overload.refused["upstream"] += 1
            return Refusal(ErrorCode.UNAVAILABLE, "overloaded: all handlers are busy", True, 500)
        return self._overload.admit_request(now)

    def _unknown(self, action: str) -> Refusal:
        near = []
        if not self._hints.take(self._clock.monotonic()):
            near = difflib.get_close_matches(action[:100], self._actions, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return Refusal(ErrorCode.UNKNOWN_ACTION, f"no action {action[:100]!r}{hint}", False)

    async def _accept(self, connection: ClientConnection, frame: Request, rule: ActionRule) -> None:
        """Accept a request, reject it, or store its response."""
        requests, rid = connection.requests, frame.rid
        try:
            await self._record_and_start(connection, frame, rule)
            if requests.state(rid) is RequestState.CANCELLED:
                # its task may have been enqueued after the cancel had looked for it
                await self._until_done(connection, functools.partial(self._drop, connection.sid, rid))
        except Exception:
            requests.drop(rid)
            raise
        requests.settle(rid)

    async def _record_and_start(self, connection: ClientConnection, frame: Request, rule: ActionRule) -> None:
        seconds = min(rule.deadline, frame.deadline_ms / 1000 or rule.deadline)
        until = self._clock.monotonic() + seconds
        user = connection.identity.user if connection.identity is not None else ""
        origin = Origin(connection.sid, frame.rid, user, math.ceil((self._clock.time() + seconds) * 1000))
        connection.arrivals += 1
        arrival, state, sure = connection.arrivals, "", frame.rid not in connection.known_rids
        try:
            if frame.no_reply:
                if await self._intake.enqueue(origin, frame, rule, seconds, connection):
                    self._accepted(connection, frame.rid)
                return
            state, sure = await self._intake.record(
                connection, origin, arrival, self._max_open(connection), until, sure
            )
            if not state:
                await self._respond_late(connection, origin)
                return
            is_cancelled = connection.requests.state(frame.rid) is RequestState.CANCELLED
            if state in ("new", "open") and not is_cancelled:
                left = until - self._clock.monotonic()
                self.open.add((origin.session, origin.rid), left)
                if rule.where == "worker":
                    if not await self._intake.enqueue(origin, frame, rule, left):
                        return
                elif state == "new":  # "open": it runs here or in another gateway, or its deadline answers it
                    self._background.start(self._local_actions.run(self._tasks[rule.name], origin, frame, left))
        except NotAccepted as exc:
            if frame.no_reply or (not state and exc.sure):
                self._reject(connection, frame.rid, exc.refusal)
            elif state == "new" and sure and exc.sure:
                await self._withdraw(connection, origin, arrival, exc.refusal)
            else:
                await self._respond(connection, origin, exc.refusal)
            return
        self._answer(connection, frame.rid, state)

    def _max_open(self, connection: ClientConnection) -> int:
        limits = connection.identity.limits if connection.identity is not None else {}
        return int(limits.get("open_requests", self._config.open_requests))

    def _answer(self, connection: ClientConnection, rid: int, state: str) -> None:
        if state == "gone":
            connection.lost()
        elif state == "superseded":
            connection.end(CloseCode.SUPERSEDED, "the session is attached by another connection")
        else:
            self.counters["repeated"] += state != "new"
            self._accepted(connection, rid)

    # Refusing.

    async def _withdraw(self, connection: ClientConnection, origin: Origin, arrival: int, refusal: Refusal) -> None:
        """Delete the record, then reject the request: the client may reuse its number."""

        async def refuse() -> None:
            sent = await self._store.outbox.refuse(origin.session, origin.rid, connection.generation, arrival)
            if sent == "refused":
                self.open.remove((origin.session, origin.rid))
                self._reject(connection, origin.rid, refusal)

        await self._until_done(connection, refuse)

    async def _respond(self, connection: ClientConnection, origin: Origin, refusal: Refusal) -> None:
        """Store the refusal as the response, because an earlier call may have left a task: if that task runs, it finds
        the request answered."""

        async def respond() -> None:
            await self._answers.respond(origin, code=refusal.code, error=refusal.reason)
            self.open.remove((origin.session, origin.rid))

        await self._until_done(connection, respond)

    async def _respond_late(self, connection: ClientConnection, origin: Origin) -> None:
        self.counters["timed_out"] += not connection.over
        await self._respond(connection, origin, Refusal(ErrorCode.DEADLINE, "no answer before the deadline", True))

    async def _until_done(self, connection: ClientConnection, act: Callable[[], Awaitable[None]]) -> None:
        """Retry until it succeeds or the client is gone. A client that left sends its request again, or the deadline of
        the record answers it."""
        tries = self._intake.tries(math.inf)
        while not connection.over:
            try:
                await act()
            except StoreError as exc:
                await tries.wait(exc)
            else:
                return

    def _accepted(self, connection: ClientConnection, rid: int) -> None:
        """Accept a request, and each copy that came before this was decided."""
        copies = connection.requests.take_copies(rid)
        self.counters["accepted"] += 1 + copies
        self.counters["repeated"] += copies
        if not connection.over:
            for _ in range(1 + copies):
                connection.link.accept(rid, self._clock.monotonic())
            self._delivery.touch(connection)

    def _reject(self, connection: ClientConnection, rid: int, refusal: Refusal) -> None:
        if not connection.requests.reject(rid):
            return
        self.counters["rejected"] += 1
        if not connection.over:
            connection.link.reject(
                rid,
                refusal.code,
                self._clock.monotonic(),
                retry_after_ms=refusal.retry_after_ms,
                error=refusal.reason,
            )
            self._delivery.touch(connection)

    # Cancelling.

    def cancel(self, connection: ClientConnection, rid: int) -> None:
        if not connection.requests.cancel(rid):
            return
        connection.client_tasks.start(self._background, ("request", rid), lambda: self._cancel(connection, rid))

    async def _cancel(self, connection: ClientConnection, rid: int) -> None:
        """Answer first, then delete the task, so that the task's own response comes too late. If the first try got no
        reply, the response that a second try finds may be ours."""
        sid, user = connection.sid, connection.identity.user if connection.identity else ""
        tried = False

        async def cancel() -> None:
            nonlocal tried
            before, tried = tried, True
            try:
                responded = await self._answers.respond(
                    Origin(sid, rid, user, 0), code=ErrorCode.CANCELLED, error="cancelled"
                )
                self.counters["cancelled"] += responded.status == "sent"
                if responded.status == "sent" or before:
                    self._local_actions.cancel(sid, rid)
                    await self._drop(sid, rid)
            except CommandRefused as exc:
                if isinstance(exc, ServerFull):
                    raise
                logger.warning("request %d of session %s cannot be cancelled: %s", rid, sid, exc)

        await self._until_done(connection, cancel)

    async def _drop(self, sid: str, rid: int) -> None:
        """Delete the task from every queue of an action, because the record does not name the action."""
        for queue in {rule.queue for rule in self._actions.values() if rule.where == "worker"}:
            await self._store.cancels.cancel(queue, task_id_of(sid, rid), "delete", lambda message: message)

    # Deadlines.

    def tick(self, now: float) -> None:
        for key in self.open.take_due(now):
            self._background.start(self.expire(*key))

    async def expire(self, sid: str, rid: int) -> None:
        """Answer a request whose deadline has passed, of this gateway or of a dead one that a sweep found."""
        origin = Origin(sid, rid, "", 0)
        try:
            responded = await self._answers.respond(
                origin, code=ErrorCode.DEADLINE, error="no answer before the deadline"
            )
        except StoreError as exc:
            logger.debug("request %d of session %s has timed out; a later sweep answers it: %s", rid, sid, exc)
            return
        if responded.status == "sent":
            self.counters["timed_out"] += 1
            self._local_actions.cancel(sid, rid)

    async def close(self, seconds: float) -> None:
        """Give local handlers this many seconds to end."""
        await self._background.close(seconds)
