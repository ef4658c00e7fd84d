"""The outbox: messages to a session are numbered and stored in one atomic step, and leave when acknowledged."""

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
from veredus.store.outbox_rows import (
    DEDUPE_MS,
    Accept,
    AckRow,
    Append,
    Bind,
    Excerpt,
    Post,
    ReadRow,
    Responded,
    policy_code,
    push_result,
)
from veredus.store.partitions import Partitions, raise_first
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.store.spreading import Spreading
from veredus.wire import session_keys as keys
from veredus.wire.entries import LATE_MARK, unpack_entry
from veredus.wire.frames import encode_tail

__all__ = ["Accept", "AckRow", "Append", "Bind", "Excerpt", "Outbox", "Post", "ReadRow", "Responded"]

APPEND = load(
    "outbox/append", keys="partition", args="channel dedupe_ms count {sid expiry key rid number policy tail}* [now_ms]"
)
BIND = load(
    "outbox/bind",
    keys="partition",
    args="channel dedupe_ms hold_ms per_request per_session late_mark count"
    " {sid rid side expiry key late on_fail policy tail}* [now_ms]",
)
ACCEPT = load(
    "outbox/accept",
    keys="partition",
    args="channel max_open max_records count {sid rid deadline generation arrival}* [now_ms]",
)
REFUSE = load("outbox/refuse", keys="partition", args="channel sid rid generation arrival hold_ms [now_ms]")
RESPOND = load(
    "outbox/respond",
    keys="partition",
    args="channel extra failed sid rid response dropped count_before count_after {tail}* [now_ms]",
)
ACK = load("outbox/ack", keys="partition", args="channel count {sid seq rid_floor ts}* [now_ms]")
READ = load("outbox/read", keys="partition", args="channel count {sid from_seq most max_bytes}* [now_ms]")

_SIDES = {SyncHint.BEFORE_RESPONSE: "B", SyncHint.AFTER_RESPONSE: "C"}


class Outbox(Spreading):
    """All rows of one call are checked before the first is written."""

    def __init__(self, redis: Redis, partitions: Partitions | None = None) -> None:
        self._redis = redis
        self.partitions = partitions or Partitions(redis)

    async def append(self, rows: Sequence[Append]) -> list[PushResult]:
        """Number and store messages, each in the log of its session; rows of one session keep their order. Results:
        queued, duplicate, full, gone."""
        replies = await self.partitions.run_rows(
            APPEND,
            rows,
            lambda row: keys.sid_tag(row.sid),
            lambda row: (row.sid, row.expiry, row.dedupe_key, *row.notify, policy_code(row.policy), row.tail),
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
        """Bind one message to the response to request `rid`, which may be open, answered, or not have come yet.
        Results: held, queued (after a response that is there), late, too_late, duplicate, full, gone."""
        row = Bind(sid, rid, hint, tail, expiry, dedupe_key, late, on_fail, policy)
        return (await self.bind_many([row], hold=hold))[0]

    async def bind_many(self, rows: Sequence[Bind], *, hold: float = MESSAGE_TIMEOUT) -> list[PushResult]:
        """`hold`: seconds for which a bind waits for a request that has not come yet."""
        replies = await self.partitions.run_rows(
            BIND,
            rows,
            lambda row: keys.sid_tag(row.sid),
            lambda row: (
                row.sid,
                row.rid,
                _SIDES[row.hint],
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
        """How many are held for the response to this request: before it, after it."""
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
        """Record a request as accepted: new, open (accepted before, not answered), done (answered), full (too many
        open), superseded (another connection has the session) or gone. `deadline_ms` is Unix ms. `arrival` numbers the
        frames of a connection: called again with the same one, after a lost reply, the answer is `new` again."""
        return (await self.accept_many([Accept(sid, rid, deadline_ms, generation, arrival)], max_open))[0]

    async def accept_many(self, rows: Sequence[Accept], max_open: int = MAX_OPEN_REQUESTS) -> list[str]:
        replies = await self.partitions.run_rows(
            ACCEPT, rows, lambda row: keys.sid_tag(row.sid), lambda row: row, head=(max_open, MAX_REQUEST_RECORDS)
        )
        return [reply.decode() for reply in replies]

    async def refuse(self, sid: str, rid: int, generation: int, arrival: int) -> str:
        """Take back what `accept` recorded for this arrival: refused, answered (meanwhile) or gone. The number may be
        used again, and what is bound to it waits for that."""
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
        """The one terminal response to a request: held befores, `befores`, the response, held afters, `afters` are
        appended as one consecutive run. A second response adds nothing and is told so. `dropped`: how many notifies the
        client has missed already; the response says how many in all."""
        reply = await self.partitions.run(
            RESPOND,
            keys.sid_tag(sid),
            (
                HARD_CAP_EXTRA,
                int(failed),
                sid,
                rid,
                response_tail,
                dropped,
                len(befores),
                len(afters),
                *befores,
                *afters,
            ),
        )
        status, seq, first, last, dropped = reply
        return Responded(status.decode(), seq, first, last, dropped)

    async def expire(self, due: Sequence[tuple[str, int]]) -> int:
        """Give requests whose deadline has passed (see `Sessions.sweep`) their terminal response, unless they have one
        by now; what is bound to them is sent or dropped with it. Returns how many were answered so."""
        answered = 0
        for sid, rid in due:
            message = Message(kind=Kind.RESPONSE, rid=rid, code=ErrorCode.DEADLINE, error="the deadline has passed")
            responded = await self.respond(sid, rid, encode_tail(message), failed=True)
            answered += responded.status == "sent"
        return answered

    async def ack(self, rows: Sequence[AckRow | tuple[str, int, int] | tuple[str, int, int, int]]) -> list[str]:
        """Everything up to `seq` has been handed to the client's application, and every answer up to request
        `rid_floor` been seen: ok, ahead (beyond the top), forked (the message with this number has another `ts`; both
        change nothing) or gone."""
        replies = await self.partitions.run_rows(ACK, rows, lambda row: keys.sid_tag(row[0]), lambda row: AckRow(*row))
        return [reply.decode() for reply in replies]

    async def read(self, rows: Sequence[ReadRow | tuple[str, int, int, int]]) -> list[Excerpt | None]:
        """From each log at most `most` entries from `from_seq` on (or from the floor, if that is higher), at most
        `max_bytes` of them but at least one. With 0: only where the log stands."""
        replies = await self.partitions.run_rows(READ, rows, lambda row: keys.sid_tag(row[0]), lambda row: row)
        return [_excerpt(reply) for reply in replies]


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
