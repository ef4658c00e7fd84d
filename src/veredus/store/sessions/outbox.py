"""Outbox: numbers and stores messages to sessions in one atomic step, and deletes them when acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veredus.model.delivery import (
    HARD_CAP_EXTRA,
    MAX_BINDS_PER_REQUEST,
    MAX_BINDS_PER_SESSION,
    MAX_OPEN_REQUESTS,
    MAX_REQUEST_RECORDS,
    MESSAGE_TIMEOUT,
    PushResult,
    SyncHint,
)
from veredus.model.frames import ErrorCode, Kind, Message
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.sessions.broadcast import Broadcast
from veredus.store.sessions.outbox_rows import (
    DEDUPE_MS,
    AcceptRow,
    AckRow,
    Append,
    AppendRow,
    Bind,
    BindRow,
    Excerpt,
    Post,
    ReadRow,
    Responded,
    TailRow,
    policy_code,
    push_result,
)
from veredus.store.sessions.session_partitions import SessionPartitions, raise_first
from veredus.wire import session_keys as keys
from veredus.wire.frames import encode_stored
from veredus.wire.log_entries import LATE_MARK, unpack_entry

__all__ = ["AcceptRow", "AckRow", "Append", "Bind", "Excerpt", "Outbox", "Post", "ReadRow", "Responded"]

APPEND = load("outbox/append", keys="sessions", args="channel dedupe_ms", rows=AppendRow)
BIND = load(
    "outbox/bind",
    keys="sessions",
    args="channel dedupe_ms hold_ms per_request per_session late_mark",
    rows=BindRow,
)
ACCEPT = load("outbox/accept", keys="sessions", args="max_open max_records", rows=AcceptRow)
REFUSE = load("outbox/refuse", keys="sessions", args="sid rid generation arrival hold_ms")
RESPOND = load(
    "outbox/respond",
    keys="sessions",
    args="channel extra failed sid rid response dropped_before",
    rows=(TailRow, TailRow),
)
ACK = load("outbox/ack", keys="sessions", args="", rows=AckRow)
READ = load("outbox/read", keys="sessions", args="", rows=ReadRow)

_IS_BEFORE = {SyncHint.BEFORE_RESPONSE: True, SyncHint.AFTER_RESPONSE: False}


class Outbox(Broadcast):
    """All rows of one call are checked before the first is written."""

    def __init__(self, redis: Redis, partitions: SessionPartitions | None = None) -> None:
        self._redis = redis
        self.partitions = partitions or SessionPartitions(redis)

    async def append(self, rows: Sequence[Append]) -> list[PushResult]:
        """Number and store messages in the logs of their sessions. Rows of one session keep their order. Results:
        queued, duplicate, full, gone."""
        replies = await self.partitions.run_rows(
            APPEND,
            rows,
            lambda row: keys.sid_tag(row.sid),
            _append_row,
            lambda row: len(row.tail),
            head=(DEDUPE_MS,),
        )
        return [push_result(reply, row.sid) for reply, row in zip(replies, rows, strict=True)]

    async def bind(
        self,
        sid: str,
        rid: int,
        hint: SyncHint,
        tail: bytes,
        *,
        expiry: str = "",
        dedupe_key: str = "",
        late: str = "send",
        on_fail: str = "send",
        policy: str = "",
        hold: float = MESSAGE_TIMEOUT,
    ) -> PushResult:
        """Bind one message to the response to request `rid`, which may be open, answered, or not received yet. Results:
        held, queued (after an existing response), late, too_late, duplicate, full, gone."""
        row = Bind(sid, rid, hint, tail, expiry, dedupe_key, late, on_fail, policy)
        return (await self.bind_many([row], hold=hold))[0]

    async def bind_many(self, rows: Sequence[Bind], *, hold: float = MESSAGE_TIMEOUT) -> list[PushResult]:
        """`hold`: seconds for which a bind waits for a request that was not received yet."""
        replies = await self.partitions.run_rows(
            BIND,
            rows,
            lambda row: keys.sid_tag(row.sid),
            lambda row: BindRow(
                row.sid,
                row.rid,
                _IS_BEFORE[row.hint],
                row.expiry,
                row.dedupe_key,
                row.late[0],
                row.on_fail[0],
                policy_code(row.policy),
                row.tail,
            ),
            lambda row: len(row.tail),
            head=(DEDUPE_MS, int(hold * 1000), MAX_BINDS_PER_REQUEST, MAX_BINDS_PER_SESSION, LATE_MARK),
        )
        return [push_result(reply, row.sid) for reply, row in zip(replies, rows, strict=True)]

    async def held(self, sid: str, rid: int) -> tuple[int, int]:
        """The number of messages held for the response to this request: before it, after it."""
        keys.sid_tag(sid)
        sides = (keys.befores(sid, rid), keys.afters(sid, rid))
        replies = await self._redis.command_each([("LLEN", side) for side in sides])
        raise_first(replies)
        return int(replies[0]), int(replies[1])

    async def accept(
        self,
        sid: str,
        rid: int,
        deadline_ms: int,
        generation: int,
        max_open: int = MAX_OPEN_REQUESTS,
        arrival: int = 0,
    ) -> str:
        """Record a request. Returns new, open (accepted before, not answered), done (answered), full (too many open),
        superseded (another connection has the session) or gone. `deadline_ms` is Unix ms. `arrival` numbers the frames
        of a connection: a repeated call with the same number, after a lost reply, returns `new` again."""
        return (await self.accept_many([AcceptRow(sid, rid, deadline_ms, generation, arrival)], max_open))[0]

    async def accept_many(self, rows: Sequence[AcceptRow], max_open: int = MAX_OPEN_REQUESTS) -> list[str]:
        replies = await self.partitions.run_rows(
            ACCEPT, rows, lambda row: keys.sid_tag(row.sid), lambda row: row, head=(max_open, MAX_REQUEST_RECORDS)
        )
        return [reply.decode() for reply in replies]

    async def refuse(self, sid: str, rid: int, generation: int, arrival: int) -> str:
        """Delete the record that `accept` made for this arrival. Returns refused, answered (since then) or gone. The
        number may be used again; messages bound to it are kept for that."""
        args = (sid, rid, generation, arrival, int(MESSAGE_TIMEOUT * 1000))
        reply: bytes = await self.partitions.run(REFUSE, keys.sid_tag(sid), args)
        return reply.decode()

    async def respond(
        self,
        sid: str,
        rid: int,
        response_tail: bytes,
        befores: Sequence[bytes] = (),
        afters: Sequence[bytes] = (),
        *,
        failed: bool = False,
        dropped: int = 0,
    ) -> Responded:
        """Append the only response to a request, as one consecutive run: held befores, `befores`, the response, held
        afters, `afters`. A second response adds nothing and returns duplicate. `dropped`: notifications that the client
        has already missed; the response contains the total."""
        reply = await self.partitions.run(
            RESPOND,
            keys.sid_tag(sid),
            (HARD_CAP_EXTRA, int(failed), sid, rid, response_tail, dropped),
            [TailRow(tail) for tail in befores],
            [TailRow(tail) for tail in afters],
        )
        status, seq, first, last, dropped = reply
        return Responded(status.decode(), seq, first, last, dropped)

    async def expire(self, due: Sequence[tuple[str, int]]) -> int:
        """Answer requests whose deadline has passed (see `Sessions.sweep`), unless they have a response; messages bound
        to them are sent or dropped. Returns how many were answered."""
        answered = 0
        for sid, rid in due:
            message = Message(kind=Kind.RESPONSE, rid=rid, code=ErrorCode.DEADLINE, error="the deadline has passed")
            responded = await self.respond(sid, rid, encode_stored(message), failed=True)
            answered += responded.status == "sent"
        return answered

    async def ack(self, rows: Sequence[AckRow | tuple[str, int, int] | tuple[str, int, int, int]]) -> list[str]:
        """Record that the client handled everything up to `seq` and saw every response up to request `rid_floor`.
        Returns ok, ahead (beyond the top), forked (the message with this number has another `ts`) or gone; only ok
        changes anything."""
        replies = await self.partitions.run_rows(ACK, rows, lambda row: keys.sid_tag(row[0]), lambda row: AckRow(*row))
        return [reply.decode() for reply in replies]

    async def read(self, rows: Sequence[ReadRow | tuple[str, int, int, int]]) -> list[Excerpt | None]:
        """Read at most `most` entries of each log from `from_seq` (or from the floor, if that is higher), at most
        `max_bytes` but at least one entry. With 0, only the positions of the log."""
        replies = await self.partitions.run_rows(READ, rows, lambda row: keys.sid_tag(row[0]), lambda row: row)
        return [_excerpt(reply) for reply in replies]


def _append_row(row: Append) -> AppendRow:
    rid, number = row.notify
    return AppendRow(row.sid, row.expiry, row.dedupe_key, rid, number, policy_code(row.policy), row.tail)


def _excerpt(reply: Any) -> Excerpt | None:
    if not reply:
        return None
    epoch, generation, floor, floor_ts, policy_floor, top, node, first, rows = reply
    first = int(first)
    return Excerpt(
        epoch.decode(),
        int(generation),
        int(floor),
        int(floor_ts),
        int(policy_floor),
        int(top),
        [unpack_entry(first + i, row) for i, row in enumerate(rows)],
        node.decode(),
    )
