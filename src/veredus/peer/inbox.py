"""What was received and waits for the application, in order; handing out the next item acknowledges the one before."""

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
    """One reader. The window agreed with the gateway bounds what can be in here."""

    def __init__(self, acknowledge: Callable[[Cursor], None], window: int) -> None:
        self._acknowledge = acknowledge
        self._window = window
        self._items: deque[Item] = deque()
        self._handed: Cursor | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: SessionClosed | None = None
        self._warned = False
        self.has_reader = False
        """Whether anybody ever asked for an item."""

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
            logger.warning("%d messages wait and nobody reads them: the gateway sends no more", len(self._items))

    def forget_from(self, seq: int) -> None:
        """The log was forked: what has this number or a higher one was replaced by other messages."""
        self._items = deque(item for item in self._items if isinstance(item, Discontinuity) or item.cursor.seq < seq)
        if self._handed is not None and self._handed.seq >= seq:
            self._handed = None

    async def take(self) -> Item:
        """The next item. At the end StopAsyncIteration, or the error that ended the session."""
        self.done_with_last()
        if not self._items:
            await self._wait()
        item = self._items.popleft()
        self._handed = None if type(item) is Discontinuity else item.cursor  # type: ignore[union-attr]
        return item

    async def take_many(self, most: int) -> list[Item]:
        """At least one, and all that are here already."""
        self.done_with_last()
        if not self._items:
            await self._wait()
        items = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        self._handed = next((item.cursor for item in reversed(items) if not isinstance(item, Discontinuity)), None)
        return items

    async def _wait(self) -> None:
        self.has_reader = True
        if self._waiter is not None:
            raise ConfigError("iteration", "a second one", "one reader at a time")
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error.with_traceback(None)  # not with the frames of every time
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def done_with_last(self) -> None:
        """What was handed out last is handled."""
        self.has_reader = True
        cursor = self._handed
        if cursor is not None:
            self._handed = None
            self._acknowledge(cursor)

    def end(self, error: SessionClosed | None) -> None:
        """Nothing more will come; what is here can still be read."""
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def call_one_by_one(self, on_message: OnMessage) -> None:
        """Read for a callback that may be asynchronous: the next call comes after the last one is through."""
        try:
            while True:
                item = await self.take()
                try:
                    called = on_message(item)
                    if called is not None:
                        await called
                except Exception:
                    logger.exception("on_message failed for %r; it counts as handled", item)
        except (StopAsyncIteration, SessionClosed):
            self.done_with_last()  # the end; why is told by on_event and by whatever is asked next
