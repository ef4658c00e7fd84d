"""Sessions: made, attached to a connection, left, resumed elsewhere, swept and closed, each in one atomic step."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Container, Iterable, Sequence

from veredus.errors import ConfigError, Unauthorized
from veredus.model.delivery import (
    HARD_CAP_EXTRA,
    MAX_GROUPS_PER_SESSION,
    MAX_SESSIONS_PER_USER,
    SECRET_GRACE,
    Cursor,
    Quota,
    Reason,
    Verdict,
)
from veredus.store.nodes import Nodes
from veredus.store.partitions import Partitions, raise_first
from veredus.store.places import text
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.store.session_looks import SessionLooks
from veredus.store.session_rows import Attached, Created, SessionRow, Swept
from veredus.wire import session_keys as keys
from veredus.wire.entries import LATE_MARK, unpack_entry

__all__ = ["Attached", "Created", "SessionRow", "Sessions", "Swept"]

logger = logging.getLogger("veredus.gateway")

CREATE = load(
    "session/create",
    keys="partition",
    args="channel sid user epoch node connection secret quota_entries quota_bytes policy ttl_ms max_sessions when_full"
    " issued count {group}* [now_ms]",
)
ATTACH = load(
    "session/attach",
    keys="partition",
    args="channel sid user secret next_secret grace_ms epoch seq ts next_epoch node connection first max_bytes"
    " rid_floor issued count {group}* [now_ms]",
)
GRANT = load("session/grant", keys="partition", args="channel sid issued count {group}* [now_ms]")
DETACH = load("session/detach", keys="partition", args="channel count {sid generation}* [now_ms]")
CLOSE = load("session/close", keys="partition", args="channel count {sid reason}* [now_ms]")
DISCONNECT = load(
    "session/disconnect", keys="partition", args="channel call kept_ms before reason count {sid}* [now_ms]"
)
REVOKE = load("session/revoke", keys="partition", args="channel user before kept_ms [now_ms]")
SWEEP = load(
    "session/sweep", keys="partition", args="channel limit late_mark extra nodes {node}* count {tag}* [now_ms]"
)
JOIN = load("session/join", keys="partition", args="channel most count {sid group}* [now_ms]")
LEAVE = load("session/leave", keys="partition", args="channel count {sid group}* [now_ms]")

SWEEP_LIMIT = 20
SWEEP_PARTITIONS = 32
"""In one call, on one server."""
FIRST = 64
FIRST_BYTES = 256 * 1024
WHEN_FULL = ("oldest", "refuse")
ENDED_AT_ONCE = 64
"""Sessions in one call."""
ENDED_KEPT = 300.0
"""Seconds for which at least the reason is kept for the client; longer if the session's TTL is."""


class Sessions(SessionLooks):
    """The names of users, groups and nodes may be any text of 1 to 200 characters; an anonymous session has user ''."""

    def __init__(self, redis: Redis, partitions: Partitions | None = None) -> None:
        super().__init__(redis, partitions or Partitions(redis))
        self._nodes = Nodes(redis)
        self._lost: set[str] = set()

    async def create(
        self,
        user: str,
        *,
        node: str,
        connection: str,
        secret_hash: str,
        quota: Quota,
        ttl_ms: int,
        groups: Iterable[str] = (),
        max_sessions: int = MAX_SESSIONS_PER_USER,
        when_full: str = "oldest",
        sid: str = "",
        issued: str = "-0",
    ) -> Created:
        """A new session, attached to this connection, with what waited in the user's mailbox as its first entries. A
        user with `max_sessions` already loses the one that was attached longest ago (`oldest`), or gets no new one
        (`refuse`). `issued` says when the client's token was issued: in Unix ms, or `-<ms>` for so long ago. Raises
        Unauthorized if such tokens are revoked."""
        if when_full not in WHEN_FULL:
            raise ConfigError("when_full", when_full, f"one of {', '.join(WHEN_FULL)}", known=WHEN_FULL)
        if user:
            keys.check_name("user", user)
        groups = _named(groups)
        sid = sid or keys.new_sid(user)
        epoch = secrets.token_hex(4)
        await self.partitions.announce(groups, keys.sid_tag(sid), before=True)
        reply = await self.partitions.run(
            CREATE,
            keys.sid_tag(sid),
            (
                sid,
                user,
                epoch,
                keys.check_name("node", node),
                connection,
                secret_hash,
                quota.entries,
                quota.bytes,
                quota.policy[0],
                ttl_ms,
                max_sessions,
                when_full,
                issued,
                len(groups),
                *groups,
            ),
        )
        await self.partitions.announce(groups, keys.sid_tag(sid))
        if reply == b"revoked":
            raise _revoked()
        if not reply:
            return Created("", "", 0, 0)
        return Created(sid, epoch, 1, int(reply[0]), tuple(one.decode() for one in reply[1]))

    async def attach(
        self,
        sid: str,
        *,
        user: str,
        secret_hash: str,
        next_secret_hash: str,
        cursor: Cursor,
        node: str,
        connection: str,
        first: int = FIRST,
        max_bytes: int = FIRST_BYTES,
        rid_floor: int = 0,
        groups: Iterable[str] = (),
        issued: str = "-0",
    ) -> Attached:
        """Resume a session on this connection. The secret is exchanged for the next one (the one presented stays good
        for the session's TTL, because the welcome may be lost), whatever connection had the session is told to let go,
        everything up to the cursor is acknowledged. A cursor that does not fit the log begins a new epoch; what is in
        the log is then delivered under it. `groups` are those that the client's token names now: see `grant`. Raises
        Unauthorized if the token is revoked; `issued` is that of `create`."""
        try:
            tag = keys.sid_tag(sid)
        except ConfigError:
            return Attached(Verdict.UNKNOWN, Reason.UNKNOWN)  # clients send what they like
        named = _named(groups)
        await self.partitions.announce(named, tag, before=True)
        reply = await self.partitions.run(
            ATTACH,
            tag,
            (
                sid,
                user,
                secret_hash,
                next_secret_hash,
                int(SECRET_GRACE * 1000),
                cursor.epoch,
                cursor.seq,
                cursor.ts,
                secrets.token_hex(4),
                keys.check_name("node", node),
                connection,
                first,
                max_bytes,
                rid_floor,
                issued,
                len(named),
                *named,
            ),
        )
        await self.partitions.announce(named, tag)
        result, reason = reply[0].decode(), reply[1].decode()
        if result == Verdict.REVOKED:
            raise _revoked()
        if len(reply) == 2:
            return Attached(result, reason)
        epoch = reply[2].decode()
        base_seq, base_ts, top, generation, gap_from, gap_to = (int(number) for number in reply[3:9])
        requests, rows = reply[9], reply[10]
        return Attached(
            result,
            reason,
            epoch,
            Cursor(epoch, base_seq, base_ts),
            top,
            generation,
            (gap_from, gap_to) if gap_to else None,
            [(int(requests[i]), requests[i + 1].decode()) for i in range(0, len(requests), 2)],
            [unpack_entry(base_seq + 1 + i, row) for i, row in enumerate(rows)],
        )

    async def detach(self, rows: Sequence[tuple[str, int]]) -> list[bool]:
        """The connections (sid, generation) are gone; the sessions wait for their clients to come back. False for one
        that another connection has by now."""
        replies = await self.partitions.run_rows(DETACH, rows, lambda row: keys.sid_tag(row[0]), lambda row: row)
        return [bool(reply) for reply in replies]

    async def close(self, sid: str, reason: str = "closed") -> bool:
        """End a session with all that belongs to it; its connection, wherever it is, is told. False if there is
        none."""
        replies = await self.partitions.run_rows(
            CLOSE, [(sid, reason[:100])], lambda row: keys.sid_tag(row[0]), lambda row: row
        )
        return bool(replies[0])

    async def disconnect(self, sids: Sequence[str], reason: str, *, call: str, before: int | None = None) -> list[bool]:
        """End sessions for a reason that their clients are told, at once or when they come back to resume. False for
        those that are not there. A call that is repeated with the same `call` gives the same answer. `before`: only
        those whose token was issued earlier (Unix ms)."""
        replies = await self.partitions.run_rows(
            DISCONNECT,
            sids,
            keys.sid_tag,
            lambda sid: (sid,),
            head=(call, int(ENDED_KEPT * 1000), "" if before is None else before, reason),
            most=ENDED_AT_ONCE,
        )
        return [bool(reply) for reply in replies]

    async def revoke(self, user: str, before_ms: int | None, kept_ms: int) -> tuple[int, list[str]]:
        """Tokens of this user that were issued before this instant (None: now) are refused from now on, for `kept_ms`
        from the instant. The instant, and the user's sessions: those that have such a token are to be disconnected."""
        given: int | str = "" if before_ms is None else before_ms
        reply = await self.partitions.run(REVOKE, keys.user_tag(keys.check_name("user", user)), (user, given, kept_ms))
        return int(reply[0]), [sid for one in reply[1] if keys.is_sid(sid := text(one))]

    async def sweep(self, *, limit: int = SWEEP_LIMIT) -> Swept:
        """In every partition: end the sessions that were not resumed in time, detach those of dead nodes, find the
        requests whose deadline has passed, and release what was bound to requests that never came. Any node may do it
        at any time; at most `limit` of each kind per partition and call."""
        nodes = await self._nodes.nodes()
        swept = Swept(nodes=frozenset(nodes))
        dead = [node for node, info in nodes.items() if not info.alive]
        replies = await self.partitions.run_rows(
            SWEEP,
            keys.TAGS,
            lambda tag: tag,
            lambda tag: (tag,),
            head=(limit, LATE_MARK, HARD_CAP_EXTRA, len(dead), *dead),
            most=SWEEP_PARTITIONS,
        )
        left = False
        empty: list[tuple[str, str]] = []
        for tag, (expired, orphans, due, flushed, dropped, more, groups) in zip(keys.TAGS, replies, strict=True):
            empty += [(text(group), tag) for group in groups]
            swept.expired += [text(sid) for sid in expired]
            swept.orphans += [text(sid) for sid in orphans]
            for member in due:
                sid, _, rid = text(member).rpartition(".")
                if not keys.is_sid(sid) or not rid.isdecimal():
                    await self._forget_deadline(member)
                    continue
                swept.due.append((sid, int(rid)))
            swept.flushed += flushed
            swept.dropped += dropped
            left = left or bool(more)
        await self.partitions.forget_groups(empty)
        if not left:
            for node in dead:
                await self._nodes.bury(node)
        return swept

    async def _forget_deadline(self, member: bytes) -> None:
        """One that names no request, which only another program can have written."""
        logger.warning("removed %r from the deadlines of requests: it names none", member[:100])
        rows = [("ZREM", keys.deadlines(tag), member) for tag in keys.TAGS]
        raise_first(await self._redis.command_each(rows))

    async def release_strays(self, node: str, owned: Container[str]) -> list[str]:
        """Detach what is attached to this node although it has no connection for it, now and at the last call: the
        answer to a create or an attach was lost. Every minute or so, by the node itself; returns those that were
        detached."""
        sets = [keys.attached(tag, keys.check_name("node", node)) for tag in keys.TAGS]
        replies = await self._redis.command_each([("SMEMBERS", one) for one in sets])
        raise_first(replies)
        lost = {sid for reply in replies for one in reply if keys.is_sid(sid := text(one)) and sid not in owned}
        twice, self._lost = lost & self._lost, lost
        rows = [row for row in await self.show(sorted(twice)) if row.node == node] if twice else []
        if rows:
            await self.detach([(row.sid, row.generation) for row in rows])
        return [row.sid for row in rows]

    async def join(self, sid: str, group: str) -> bool:
        """False if the session is gone; raises ConfigError if it is in too many groups."""
        keys.check_name("group", group)
        await self.partitions.announce([group], keys.sid_tag(sid), before=True)
        reply = (
            await self.partitions.run_rows(
                JOIN,
                [(sid, group)],
                lambda row: keys.sid_tag(row[0]),
                lambda row: row,
                head=(MAX_GROUPS_PER_SESSION,),
            )
        )[0]
        await self.partitions.announce([group], keys.sid_tag(sid))
        if reply == -1:
            raise ConfigError("group", group, f"at most {MAX_GROUPS_PER_SESSION} groups per session")
        return bool(reply)

    async def grant(self, sid: str, groups: Iterable[str], *, issued: str = "-0") -> bool:
        """The client has a new token: the session is in the groups that it names, and no longer in those that only the
        token before named. What the client or the app has joined stays. False if the session is gone. Raises
        Unauthorized if the token is revoked; `issued` is that of `create`."""
        named, tag = _named(groups), keys.sid_tag(sid)
        await self.partitions.announce(named, tag, before=True)
        reply = await self.partitions.run(GRANT, tag, (sid, issued, len(named), *named))
        await self.partitions.announce(named, tag)
        if reply == -1:
            raise _revoked()
        return bool(reply)

    async def leave(self, sid: str, group: str) -> bool:
        """False if it was not a member."""
        replies = await self.partitions.run_rows(
            LEAVE, [(sid, group)], lambda row: keys.sid_tag(row[0]), lambda row: row
        )
        return bool(replies[0])


def _revoked() -> Unauthorized:
    return Unauthorized("the token is revoked")


def _named(groups: Iterable[str]) -> list[str]:
    """The groups that a token names, each once."""
    named = list(dict.fromkeys(groups))
    if len(named) > MAX_GROUPS_PER_SESSION:
        raise ConfigError("groups", len(named), f"at most {MAX_GROUPS_PER_SESSION} groups")
    return named
