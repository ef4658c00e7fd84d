"""PeerRequests: the open requests of a peer; Pending: one of them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Generator
from typing import Any

from veredus.errors import ConfigError, RequestError, RequestFailed, RequestLost, RequestRejected, RequestTimeout
from veredus.link.session import ClientLink, Rejected
from veredus.model.frames import ErrorCode, retryable
from veredus.model.frames import Message as MessageFrame
from veredus.peer.config import PeerConfig
from veredus.peer.items import decoded
from veredus.wire.payload import encode_value


class Pending:
    """An open request: await it for its result. `rid` is its number, to which a notification can be bound."""

    __slots__ = (
        "_accepted",
        "_cancel",
        "_future",
        "action",
        "no_reply",
        "rejects",
        "retry_scheduled",
        "rid",
        "timer",
        "until",
    )

    def __init__(self, action: str, rid: int, no_reply: bool, cancel: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        self.action, self.rid, self.no_reply = action, rid, no_reply
        self.timer: asyncio.TimerHandle | None = None
        self.until = math.inf
        """The deadline, by the loop's clock."""
        self.rejects = 0
        self.retry_scheduled = False
        """Whether it was rejected and is to be sent again."""
        self._cancel = cancel
        self._future: asyncio.Future[Any] = loop.create_future()
        self._accepted: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._future.__await__())
        except asyncio.CancelledError:
            self.cancel()
            raise

    @property
    def done(self) -> bool:
        return self._future.done()

    async def accepted(self) -> None:
        """Wait until the gateway has accepted it. Raises RequestRejected if it refuses."""
        if self._accepted is None:
            self._accepted = asyncio.get_running_loop().create_future()
        waited = self._accepted
        await asyncio.wait({waited, self._future}, return_when=asyncio.FIRST_COMPLETED)
        if not waited.done():
            error = self._future.exception()
            if isinstance(error, RequestRejected | RequestLost | RequestTimeout):
                raise error

    def cancel(self) -> None:
        """Ask the gateway to cancel it and stop waiting. Its response still arrives as a message."""
        self._cancel(self.rid)
        self._stop_timer()
        self._future.cancel()

    def accept(self) -> None:
        if self._accepted is None:
            self._accepted = self._future.get_loop().create_future()
        if not self._accepted.done():
            self._accepted.set_result(None)
        if self.no_reply:
            self.resolve(None)

    def resolve(self, value: Any) -> None:
        self._stop_timer()
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        self._stop_timer()
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # mark as retrieved: the caller may not await it

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PeerRequests:
    """The open requests, by number."""

    def __init__(self, link: ClientLink, flush_soon: Callable[[], None], config: PeerConfig) -> None:
        self._link = link
        self._flush_soon = flush_soon
        self._config = config
        self._open: dict[int, Pending] = {}
        self._to_cancel: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def submit(self, action: str, body: Any, deadline: float | None, serial: bool, no_reply: bool) -> Pending:
        if not isinstance(action, str) or not action:
            raise ConfigError("action", action, "a name")
        if deadline is not None and not 0 < deadline < 1e9:
            raise ConfigError("deadline", deadline, "seconds above 0")
        raw = isinstance(body, bytes | bytearray | memoryview)
        data = bytes(body) if raw else b"" if body is None else encode_value(body)
        loop = asyncio.get_running_loop()
        rid = self._link.request(
            action,
            data,
            deadline_ms=max(1, round(deadline * 1000)) if deadline else 0,
            no_reply=no_reply,
            serial=serial,
            encoding="raw" if raw else "json",
        )
        pending = Pending(action, rid, no_reply, self._cancel)
        if deadline is not None:  # the gateway answers at the deadline; this timer is for an unreachable gateway
            pending.until = loop.time() + deadline
            pending.timer = loop.call_later(deadline + self._config.grace, self._timed_out, rid, deadline)
        self._open[rid] = pending
        self._flush_soon()
        return pending

    def _cancel(self, rid: int) -> None:
        if (pending := self._open.pop(rid, None)) is not None:
            if pending.retry_scheduled:
                self._link.give_up(rid)
                return
            if self._link.state == "open":
                self._link.cancel(rid)
                self._flush_soon()
            else:
                self._to_cancel.add(rid)

    def welcomed(self) -> None:
        """The link has sent the open requests again: now cancel those that were cancelled offline."""
        for pending in self._open.values():
            pending.retry_scheduled = False
        for rid in self._to_cancel:
            self._link.cancel(rid)
        self._to_cancel.clear()

    def accepted(self, rid: int) -> None:
        pending = self._open.get(rid)
        if pending is not None:
            pending.accept()
            if pending.no_reply:
                del self._open[rid]

    def rejected(self, event: Rejected) -> None:
        pending = self._open.get(event.rid)
        is_lost = event.code == ErrorCode.WORKER_LOST
        if pending is not None and event.retryable and not is_lost and self._schedule_retry(pending, event):
            return
        self._open.pop(event.rid, None)
        self._link.give_up(event.rid)
        if pending is None:
            return
        if is_lost:
            pending.fail(RequestLost(pending.action, event.error or "its session is gone", retryable=event.retryable))
        else:
            pending.fail(
                RequestRejected(
                    pending.action,
                    event.error or "rejected",
                    code=event.code,
                    retryable=event.retryable,
                    retry_after=event.retry_after_ms / 1000,
                )
            )

    def _schedule_retry(self, pending: Pending, event: Rejected) -> bool:
        """Send it again later under the same number. Returns False if its retries or its time are used up."""
        loop = asyncio.get_running_loop()
        delay = self._config.backoff(pending.rejects, random.random(), event.retry_after_ms / 1000)
        pending.rejects += 1
        if pending.rejects > self._config.retries or loop.time() + delay >= pending.until:
            return False
        pending.retry_scheduled = True
        loop.call_later(delay, self._send_again, pending)
        return True

    def _send_again(self, pending: Pending) -> None:
        if self._open.get(pending.rid) is pending and pending.retry_scheduled:
            pending.retry_scheduled = False
            self._link.send_again(pending.rid)
            self._flush_soon()

    def answered(self, frame: MessageFrame) -> bool:
        """Resolve the request of a response. Returns False if it is not open here."""
        pending = self._open.pop(frame.rid, None)
        if pending is None:
            return False
        if frame.code == 0:
            pending.resolve(decoded(frame.body, frame.encoding))
        else:
            pending.fail(
                RequestFailed(pending.action, frame.error or "failed", code=frame.code, retryable=retryable(frame.code))
            )
        return True

    def _timed_out(self, rid: int, seconds: float) -> None:
        if pending := self._open.pop(rid, None):
            pending.fail(RequestTimeout(pending.action, f"no answer in {seconds:g} s", code=ErrorCode.DEADLINE))

    def fail_all(self, error: Callable[[str], BaseException]) -> None:
        for pending in self._open.values():
            pending.fail(error(pending.action))
        self._open.clear()


def lost(problem: str) -> Callable[[str], RequestError]:
    return lambda action: RequestLost(action, problem)
