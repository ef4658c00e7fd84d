"""Requests of clients: notifications from the handler while it runs, and the response at its end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from veredus.client.trace_metadata import with_trace
from veredus.errors import ConfigError, ConnectionLost, NotReady, OutboxFull, ServerFull, StoreError
from veredus.handlers.running_step import STEP
from veredus.model.backoff import Backoff
from veredus.model.delivery import MAX_BODY, PushResult, PushStatus, SyncHint
from veredus.model.frames import ErrorCode, Kind, Message
from veredus.model.job import Job
from veredus.model.options import seconds
from veredus.model.request import Origin, error_for, origin_of
from veredus.model.verdict import Outcome
from veredus.process import forks
from veredus.store.sessions.outbox import Append, Outbox, Responded
from veredus.wire.frames import encode_stored
from veredus.wire.payload import encode_value

if TYPE_CHECKING:
    from veredus.clock import Clock
    from veredus.handlers.context import Context

logger = logging.getLogger("veredus.worker")

LEAST_PATIENCE = 5.0
"""The least time in seconds for which a response is retried while the server is away."""
FULL = ("wait", "drop", "raise")
WHEN = {"now": SyncHint.IMMEDIATE, "before": SyncHint.BEFORE_RESPONSE, "after": SyncHint.AFTER_RESPONSE}


class RequestClient:
    """The client that sent the request: `current().client`."""

    def __init__(self, origin: Origin, outbox: Outbox, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.session = origin.session
        self.request = origin.rid
        self.user = origin.user
        self._outbox = outbox
        self._clock = clock
        self._loop = loop
        self._pid = os.getpid()
        self._notified = 0
        self._deadline_ms = origin.deadline_ms
        self.dropped = 0
        """Notifications that did not fit into the client's log."""
        self.befores: list[bytes] = []
        self.afters: list[bytes] = []

    async def notify(
        self,
        payload: Any = None,
        *,
        type: str = "",
        title: str = "",
        content: str = "",
        metadata: Mapping[str, str] | None = None,
        when: str = "now",
        ttl: float | timedelta | None = None,
        full: str = "wait",
    ) -> PushResult | None:
        """Send the client a notification now, or right before or after the response to its request.

        Notifications are numbered in the order of the calls, so that a retried task does not repeat earlier ones; in a
        step of a durable handler, in the order of the calls of that step. A notification `before` or `after` the
        response is written together with it; the return value is None. Inside a step only `now` is possible, because a
        step that is kept does not run again when the response is written.

        `full` is what happens while the client's log of unread messages is full: `wait` waits until the request's
        deadline and then drops the notification; `drop` drops it at once; `raise` raises OutboxFull. Notifications
        `before` and `after` the response may exceed the quota by 64; beyond that the oldest are dropped. The response
        has the number of dropped notifications in its metadata (`dropped`).
        """
        if full not in FULL:
            raise ConfigError("full", full, f"one of {', '.join(FULL)}", known=FULL)
        hint = WHEN.get(when)
        if hint is None:
            raise ConfigError("when", when, f"one of {', '.join(WHEN)}", known=WHEN)
        running = STEP.get()
        if running is not None and hint is not SyncHint.IMMEDIATE:
            raise ConfigError(
                "when", when, "now, inside a step: send messages before or after the response outside steps"
            )
        now = self._clock.time()
        raw = isinstance(payload, bytes | bytearray | memoryview)
        body = bytes(payload) if raw else b"" if payload is None else encode_value(payload)
        check_body(body)
        stored = encode_stored(
            Message(
                kind=Kind.NOTIFY,
                type=type,
                title=title,
                content=content,
                metadata=with_trace(metadata),
                body=body,
                sync_hint=hint,
                bind_client_seq_id=self.request,
                create_time=round(now * 1000),
                encoding="raw" if raw else "json",
            )
        )
        if hint is SyncHint.BEFORE_RESPONSE:
            self.befores.append(stored)
            return None
        if hint is SyncHint.AFTER_RESPONSE:
            self.afters.append(stored)
            return None
        expiry = "" if ttl is None else f"+{math.ceil(seconds('ttl', ttl) * 1000)}"
        if running is not None:
            return await self._append(Append(self.session, stored, expiry, running.next_notify()), full)
        self._notified += 1
        row = Append(self.session, stored, expiry, notify=(self.request, self._notified))
        return await self._append(row, full)

    async def _append(self, row: Append, full: str) -> PushResult:
        """Its key makes it safe to repeat, until the request's deadline."""
        backoff = Backoff(0.02, 0.5)
        while True:
            is_over = self._clock.time() * 1000 >= self._deadline_ms
            try:
                result = (await self._outbox.append([row]))[0]
            except (NotReady, ConnectionLost, ServerFull) as exc:
                if is_over or (isinstance(exc, ServerFull) and full != "wait"):
                    raise
            else:
                if result.status is not PushStatus.FULL:
                    return result
                if full == "raise":
                    raise OutboxFull(
                        f"session {self.session}: its outbox is full until its client has read some messages"
                    )
                if full == "drop" or is_over:
                    self.dropped += 1
                    return result
            await asyncio.sleep(backoff.take())

    def notify_sync(self, payload: Any = None, **settings: Any) -> PushResult | None:
        """`notify` for handlers that run in threads."""
        forks.require(self._pid, "current().client")
        return asyncio.run_coroutine_threadsafe(self.notify(payload, **settings), self._loop).result()


class RequestAnswers:
    """Answers requests. Of several answers to one request, only the first is stored."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self.outbox = outbox
        self._clock = clock

    def client_of(self, job: Job, loop: asyncio.AbstractEventLoop) -> RequestClient:
        """Raises LookupError for a task that is not a request."""
        origin = origin_of(job.headers)
        if origin is None:
            raise LookupError("current().client: this task is not a client's request")
        return RequestClient(origin, self.outbox, self._clock, loop)

    def overdue(self, headers: Mapping[str, str]) -> bool:
        """Whether the request's deadline has passed, so that no attempt can answer it."""
        origin = origin_of(headers)
        return origin is not None and self._clock.time() * 1000 > origin.deadline_ms > 0

    async def answer(self, job: Job, outcome: Outcome, context: Context) -> bool:
        """Answer the request with the outcome of its last attempt. False if the server was away until the request's
        deadline."""
        origin = origin_of(job.headers)
        if origin is None:
            return True
        code, error = error_for(outcome)
        left = max(origin.deadline_ms / 1000 - self._clock.time(), LEAST_PATIENCE)
        return await self.respond_surely(
            origin,
            self._clock.monotonic() + left,
            body=outcome.result or b"" if not code else b"",
            encoding="raw" if context.raw else "json",
            code=code,
            error=error,
            client=context.served,
        )

    async def lost(self, headers: Mapping[str, str], *, cancelled: bool) -> None:
        """Answer a request whose worker was lost and which is not retried. Raises StoreError."""
        origin = origin_of(headers)
        if origin is not None:
            code = ErrorCode.CANCELLED if cancelled else ErrorCode.WORKER_LOST
            try:
                await self.respond(origin, code=code, error="cancelled" if cancelled else "its worker was lost")
            except ConfigError as exc:  # headers that no gateway wrote
                logger.warning("task %s.%d cannot answer its request: %s", origin.session, origin.rid, exc)

    async def respond(
        self,
        origin: Origin,
        *,
        body: bytes = b"",
        encoding: str = "json",
        code: int = 0,
        error: str = "",
        client: RequestClient | None = None,
    ) -> Responded:
        """Write the response together with the notifications before and after it. Raises StoreError."""
        if len(body) > MAX_BODY:
            body, code = b"", ErrorCode.TOO_LARGE
            error = f"the response has more than {MAX_BODY:,} bytes"
        stored = encode_stored(
            Message(
                kind=Kind.RESPONSE,
                rid=origin.rid,
                body=body,
                code=code,
                error=error[:1000],
                create_time=round(self._clock.time() * 1000),
                encoding=encoding,
            )
        )
        befores = client.befores if client is not None else []
        afters = client.afters if client is not None else []
        dropped = client.dropped if client is not None else 0
        return await self.outbox.respond(
            origin.session, origin.rid, stored, befores, afters, failed=code != 0, dropped=dropped
        )

    async def respond_surely(self, origin: Origin, until: float, **answer: Any) -> bool:
        """`respond`, repeated while the server is away, until this time on the monotonic clock."""
        backoff = Backoff()
        while True:
            try:
                await self.respond(origin, **answer)
            except ConfigError as exc:  # headers that no gateway wrote
                logger.warning("task %s.%d cannot answer its request: %s", origin.session, origin.rid, exc)
                return True
            except StoreError as exc:
                if self._clock.monotonic() + backoff.next > until:
                    logger.warning("request %d of session %s is not answered: %s", origin.rid, origin.session, exc)
                    return False
                await asyncio.sleep(backoff.take())
            else:
                return True


def check_body(body: bytes) -> None:
    if len(body) > MAX_BODY:
        raise ConfigError("payload", f"{len(body):,} bytes", f"at most {MAX_BODY:,} bytes")
