"""AckWriter: writes acks and disconnects to Redis, many sessions in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from veredus.errors import StoreError
from veredus.gateway.background import BackgroundTasks
from veredus.gateway.client_connection import ClientConnection
from veredus.link.events import Acked
from veredus.model.frames import CloseCode
from veredus.store.sessions.outbox import Outbox
from veredus.store.sessions.sessions import Sessions

EVERY = 0.25
ROWS = 128
EARLY = 200
"""Acknowledged messages of one session that trigger an early write, so that its quota does not fill up."""
RETRY_AFTER = 1.0
"""Seconds until the next try after an error."""


class AckWriter:
    """Writes every quarter of a second, or earlier when there is enough. If the gateway dies before a write, clients
    drop the copies they get."""

    def __init__(self, outbox: Outbox, sessions: Sessions, failed: Callable[[StoreError], None]) -> None:
        self._outbox = outbox
        self._sessions = sessions
        self._failed = failed
        self.written = 0
        self._background = BackgroundTasks("writing acks")
        self._loop = asyncio.get_running_loop()
        self._acks: dict[str, tuple[ClientConnection, Acked]] = {}
        self._left: list[tuple[str, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def acked(self, connection: ClientConnection, ack: Acked) -> None:
        self._acks[connection.sid] = (connection, ack)
        if len(self._acks) >= ROWS or ack.seq - connection.written_ack >= EARLY:
            self._schedule(0.0)
        elif self._timer is None:
            self._schedule(EVERY)

    def left(self, connection: ClientConnection) -> None:
        self._left.append((connection.sid, connection.generation))
        self._schedule(0.01 if len(self._left) < ROWS else 0.0)

    async def write_now(self, sid: str) -> None:
        """Write the acks of one session now, because it is about to end."""
        ack = self._acks.get(sid)
        if ack is not None:
            await self._outbox.ack([(sid, *ack[1])])
            if self._acks.get(sid) is ack:
                del self._acks[sid]

    def _schedule(self, delay: float) -> None:
        due = self._loop.time() + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(delay, self._flush)

    def _flush(self) -> None:
        self._timer = None
        acks, self._acks = self._acks, {}
        left, self._left = self._left, []
        for connection, ack in acks.values():
            connection.written_ack = ack.seq
        self._background.start(self._write(acks, left))

    async def _write(self, acks: dict[str, tuple[ClientConnection, Acked]], left: list[tuple[str, int]]) -> None:
        """Acks first: a message acknowledged before the detach must not be sent again."""
        try:
            if acks:
                self.written += len(acks)
                answers = await self._outbox.ack([(sid, *ack) for sid, (_, ack) in acks.items()])
                for (connection, _), answer in zip(acks.values(), answers, strict=True):
                    if answer in ("ahead", "forked"):
                        connection.end(CloseCode.INSUFFICIENT_STATE, "the log does not contain what was acknowledged")
                    elif answer == "gone":
                        connection.lost()
            if left:
                await self._sessions.detach(left)
        except StoreError as exc:
            for sid, ack in acks.items():
                known = self._acks.get(sid)
                if known is None or (known[0] is ack[0] and known[1] < ack[1]):  # keep the newest failed ack
                    self._acks[sid] = ack
            self._left += left
            self._schedule(RETRY_AFTER)
            self._failed(exc)

    async def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._acks or self._left:
            self._flush()
        await self._background.close(2.0)
        if self._timer is not None:  # what is left cannot be written
            self._timer.cancel()
