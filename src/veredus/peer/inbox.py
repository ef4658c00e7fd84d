"""Inbox: received items in order. Taking the next item acknowledges the previous one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from veredus.errors import ConfigError, SessionClosed
from veredus.model.delivery import Cursor
from veredus.peer.items import Discontinuity, Item

logger = logging.getLogger("veredus.peer")

OnMessage = Callable[[Item], Awaitable[None] | None]


class Inbox:
    """For one reader. The window negotiated with the gateway limits its size."""

    def __init__(self, acknowledge: Callable[[Cursor], None], window: int) -> None:
        self._acknowledge = acknowledge
        self._window = window
        self._items: deque[Item] = deque()
        self._delivered: Cursor | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: SessionClosed | None = None
        self._warned = False
        self.has_reader = False
        """Whether an item was ever requested."""

    def __len__(self) -> int:
        return len(self._items)

    def ends_with(self, item: Item) -> bool:
        return bool(self._items) and self._items[-1] == item

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._waiter is not None:
            self._wake()
        elif not self.has_reader and not self._warned and len(self._items) >= self._window:
            self._warned = True
            logger.warning("%d messages are unread and nothing reads them: the gateway sends no more", len(self._items))

    def drop_from(self, seq: int) -> None:
        """Drop the messages from this number on: the log was forked and has other messages there."""
        self._items = deque(item for item in self._items if isinstance(item, Discontinuity) or item.cursor.seq < seq)
        if self._delivered is not None and self._delivered.seq >= seq:
            self._delivered = None

    async def take(self) -> Item:
        """The next item. At the end, raises StopAsyncIteration or the error that ended the session."""
        self.acknowledge_last()
        if not self._items:
            await self._wait()
        item = self._items.popleft()
        self._delivered = None if type(item) is Discontinuity else item.cursor  # type: ignore[union-attr]
        return item

    async def take_many(self, most: int) -> list[Item]:
        """Wait for at least one item and return up to `most`."""
        self.acknowledge_last()
        if not self._items:
            await self._wait()
        items = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        self._delivered = next((item.cursor for item in reversed(items) if not isinstance(item, Discontinuity)), None)
        return items

    async def _wait(self) -> None:
        self.has_reader = True
        if self._waiter is not None:
            raise ConfigError("iteration", "a second reader", "one reader at a time")
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error.with_traceback(None)  # the traceback would grow with every raise
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def acknowledge_last(self) -> None:
        """Acknowledge the last item taken."""
        self.has_reader = True
        cursor = self._delivered
        if cursor is not None:
            self._delivered = None
            self._acknowledge(cursor)

    def end(self, error: SessionClosed | None) -> None:
        """No more items arrive; the remaining ones can still be read."""
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def call_for_each(self, on_message: OnMessage) -> None:
        """Call a callback, async or not, for each item, one after the other."""
        try:
            while True:
                item = await self.take()
                try:
                    called = on_message(item)
                    if called is not None:
                        await called
                except Exception:  # a user's function may raise anything
                    logger.exception("on_message failed for %r; it counts as handled", item)
        except (StopAsyncIteration, SessionClosed):
            pass  # on_event reports the reason
