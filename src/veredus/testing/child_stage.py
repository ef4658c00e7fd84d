"""A test's server and clock in a handler's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from veredus.client.call import Call
from veredus.client.client import Send
from veredus.client.handle import Handle
from veredus.clock import Clock
from veredus.store.connection.redis import Redis
from veredus.store.store import connect
from veredus.testing.clock import ManualClock
from veredus.testing.records import Sent, pack_sent
from veredus.testing.stage import TimedRedis


class ChildStage:
    """The same database and time as in the test. What the handler sends is reported to the test."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._manual = ManualClock()
        self.clock: Clock = self._manual
        self._url = ""
        self._tell = tell

    def be_at(self, described: dict[str, Any]) -> None:
        """The clock stands still while a handler runs."""
        self._url, self._manual.now_ms = described["url"], described["now_ms"]

    def open_redis(self, name: str) -> Redis:
        return TimedRedis(connect(self._url, name=name), self._manual)

    def describe(self) -> dict[str, Any]:
        return {"url": self._url, "now_ms": self._manual.now_ms}

    def heard(self, fact: dict[str, Any]) -> None:
        self._tell(fact)

    async def record(self, calls: Iterable[Call[Any]], send: Send) -> list[Handle[Any]]:
        calls = list(calls)
        handles = await send(calls)
        for call, handle in zip(calls, handles, strict=True):
            sent = Sent(handle.id, call.type, call.payload, call.options, handle.created, self._manual.now)
            self._tell({"sent": pack_sent(sent)})
        return handles
