"""Sessions: creates, attaches, detaches, resumes, sweeps and closes sessions, each in one atomic step."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Container, Iterable, Sequence

from veredus.errors import ConfigError, Unauthorized
from veredus.model.checks import choice
from veredus.model.delivery import (
    HARD_CAP_EXTRA,
    MAX_GROUPS_PER_SESSION,
    MAX_SESSIONS_PER_USER,
    SECRET_GRACE,
    AttachResult,
    Cursor,
    Quota,
    ResetReason,
)
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.store.sessions.gateway_nodes import GatewayNodes
from veredus.store.sessions.session_partitions import SessionPartitions, raise_first
from veredus.store.sessions.session_reader import SessionReader
from veredus.store.sessions.session_rows import (
    Attached,
    Created,
    Ending,
    GroupName,
    Membership,
    NodeName,
    Partition,
    SessionConnection,
    SessionId,
    SessionRow,
    Swept,
)
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import LATE_MARK, unpack_entry

__all__ = ["Attached", "Created", "SessionRow", "Sessions", "Swept"]

logger = logging.getLogger("veredus.gateway")

CREATE = load(
    "session/create",
    keys="sessions",
    args="channel sid user epoch node connection secret quota_entries quota_bytes policy ttl_ms max_sessions when_full"
    " issued",
    rows=GroupName,
)
ATTACH = load(
    "session/attach",
    keys="sessions",
    args="channel sid user secret next_secret grace_ms epoch seq ts next_epoch node connection first max_bytes"
    " rid_floor issued",
    rows=GroupName,
)
GRANT = load("session/grant", keys="sessions", args="sid issued", rows=GroupName)
DETACH = load("session/detach", keys="sessions", args="", rows=SessionConnection)
CLOSE = load("session/close", keys="sessions", args="channel", rows=Ending)
DISCONNECT = load("session/disconnect", keys="sessions", args="channel call kept_ms before reason", rows=SessionId)
REVOKE = load("session/revoke", keys="revoked user_sessions", args="before kept_ms")
SWEEP = load("session/sweep", keys="sessions", args="channel limit late_mark extra", rows=(NodeName, Partition))
JOIN = load("session/join", keys="sessions", args="most", rows=Membership)
LEAVE = load("session/leave", keys="sessions", args="", rows=Membership)

SWEEP_LIMIT = 20
SWEEP_PARTITIONS = 32
"""Partitions in one call, on a single server."""
FIRST = 64
FIRST_BYTES = 256 * 1024
WHEN_FULL = ("oldest", "refuse")
ENDED_AT_ONCE = 64
"""Sessions ended in one call."""
ENDED_KEPT = 300.0
"""Minimum seconds for which the reason is kept for the client; longer if the session's TTL is longer."""


class Sessions(SessionReader):
    """Names of users, groups and nodes have 1 to 200 characters; an anonymous session has user ''."""

    def __init__(self, redis: Redis, partitions: SessionPartitions | None = None) -> None:
        super().__init__(redis, partitions or SessionPartitions(redis))
        self._nodes = GatewayNodes(redis)
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
        """Create a session attached to this connection; the messages in the user's mailbox are its first entries. If
        the user already has `max_sessions`, the one attached longest ago ends (`oldest`) or none is created (`refuse`).
        `issued` is when the client's token was issued: Unix ms, or `-<ms>` relative to now. Raises Unauthorized if such
        tokens are revoked."""
        choice("when_full", when_full, WHEN_FULL)
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
            ),
            [GroupName(group) for group in groups],
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
        """Resume a session on this connection. The secret is replaced by the next one (the old one stays valid for the
        session's TTL, because the welcome may be lost), the previous connection is superseded, and everything up to the
        cursor is acknowledged. A cursor that does not match the log starts a new epoch, under which the log is then
        delivered. `groups` are those of the client's token: see `grant`. Raises Unauthorized if the token is revoked;
        for `issued` see `create`."""
        try:
            tag = keys.sid_tag(sid)
        except ConfigError:
            return Attached(AttachResult.UNKNOWN, ResetReason.UNKNOWN)  # clients may send anything
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
            ),
            [GroupName(group) for group in named],
        )
        await self.partitions.announce(named, tag)
        result, reason = reply[0].decode(), reply[1].decode()
        if result == AttachResult.REVOKED:
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
        """Detach sessions (sid, generation) whose connections have closed; they can be resumed. Returns False for one
        that another connection has taken over."""
        replies = await self.partitions.run_rows(DETACH, rows, lambda row: keys.sid_tag(row[0]), lambda row: row)
        return [bool(reply) for reply in replies]

    async def close(self, sid: str, reason: str = "closed") -> bool:
        """Delete a session with everything that belongs to it, and notify its connection. Returns False if there is no
        such session."""
        replies = await self.partitions.run_rows(
            CLOSE, [Ending(sid, reason[:100])], lambda row: keys.sid_tag(row.sid), lambda row: row
        )
        return bool(replies[0])

    async def disconnect(self, sids: Sequence[str], reason: str, *, call: str, before: int | None = None) -> list[bool]:
        """End sessions. Their clients get the reason at once, or when they try to resume. Returns False for sessions
        that do not exist. A repeated call with the same `call` returns the same. `before`: only sessions whose token
        was issued earlier (Unix ms)."""
        replies = await self.partitions.run_rows(
            DISCONNECT,
            sids,
            keys.sid_tag,
            SessionId,
            head=(call, int(ENDED_KEPT * 1000), "" if before is None else before, reason),
            most=ENDED_AT_ONCE,
        )
        return [bool(reply) for reply in replies]

    async def revoke(self, user: str, before_ms: int | None, kept_ms: int) -> tuple[int, list[str]]:
        """Refuse tokens of this user that were issued before an instant (None: now), for `kept_ms` after it. Returns
        the instant and the user's sessions, of which the caller disconnects those with such a token."""
        given: int | str = "" if before_ms is None else before_ms
        names = (keys.revoked(keys.check_name("user", user)), keys.user(user))
        reply = await self.partitions.run(REVOKE, keys.user_tag(user), (given, kept_ms), names=names)
        return int(reply[0]), [sid for one in reply[1] if keys.is_sid(sid := text(one))]

    async def sweep(self, *, limit: int = SWEEP_LIMIT) -> Swept:
        """In every partition: end sessions that were not resumed in time, detach those of dead nodes, find requests
        whose deadline has passed, and release messages bound to requests that never arrived. Any node may do this at
        any time; at most `limit` of each kind per partition and call."""
        nodes = await self._nodes.nodes()
        swept = Swept(nodes=frozenset(nodes))
        dead = [node for node, info in nodes.items() if not info.alive]
        replies = await self.partitions.run_rows(
            SWEEP,
            keys.TAGS,
            lambda tag: tag,
            Partition,
            head=(limit, LATE_MARK, HARD_CAP_EXTRA),
            most=SWEEP_PARTITIONS,
            other_rows=([NodeName(node) for node in dead],),
        )
        left = False
        empty: list[tuple[str, str]] = []
        for tag, (expired, orphans, due, flushed, dropped, more, groups) in zip(keys.TAGS, replies, strict=True):
            empty += [(text(group), tag) for group in groups]
            swept.expired += [text(sid) for sid in expired]
            swept.orphans += [text(sid) for sid in orphans]
            for member in due:
                sid, _, rid = text(member).rpartition(".")
                if not keys.is_sid(sid) or not rid.isdecimal() or len(rid) > 19:
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
        """Remove a deadline without a valid request, which only another program can have written."""
        logger.warning("removed %r from the deadlines of requests: it is not a request", member[:100])
        rows = [("ZREM", keys.deadlines(tag), member) for tag in keys.TAGS]
        raise_first(await self._redis.command_each(rows))

    async def release_strays(self, node: str, owned: Container[str]) -> list[str]:
        """Detach sessions that are attached to this node, but had no connection here at this call and the previous one,
        because the reply to a create or attach was lost. Called by the node about once a minute; returns those that
        were detached."""
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
        """Returns False if the session is gone. Raises ConfigError if it is in too many groups."""
        keys.check_name("group", group)
        await self.partitions.announce([group], keys.sid_tag(sid), before=True)
        reply = (
            await self.partitions.run_rows(
                JOIN,
                [Membership(sid, group)],
                lambda row: keys.sid_tag(row.sid),
                lambda row: row,
                head=(MAX_GROUPS_PER_SESSION,),
            )
        )[0]
        await self.partitions.announce([group], keys.sid_tag(sid))
        if reply == -1:
            raise ConfigError("group", group, f"at most {MAX_GROUPS_PER_SESSION} groups per session")
        return bool(reply)

    async def grant(self, sid: str, groups: Iterable[str], *, issued: str = "-0") -> bool:
        """Apply the groups of a new token: join those it names and leave those that only the old token named. Groups
        that the client or app joined stay. Returns False if the session is gone. Raises Unauthorized if the token is
        revoked; for `issued` see `create`."""
        named, tag = _named(groups), keys.sid_tag(sid)
        await self.partitions.announce(named, tag, before=True)
        reply = await self.partitions.run(GRANT, tag, (sid, issued), [GroupName(group) for group in named])
        await self.partitions.announce(named, tag)
        if reply == -1:
            raise _revoked()
        return bool(reply)

    async def leave(self, sid: str, group: str) -> bool:
        """Returns False if it was not a member."""
        replies = await self.partitions.run_rows(
            LEAVE, [Membership(sid, group)], lambda row: keys.sid_tag(row.sid), lambda row: row
        )
        return bool(replies[0])


def _revoked() -> Unauthorized:
    return Unauthorized("the token is revoked")


def _named(groups: Iterable[str]) -> list[str]:
    """The groups of a token, without duplicates."""
    named = list(dict.fromkeys(groups))
    if len(named) > MAX_GROUPS_PER_SESSION:
        raise ConfigError("groups", len(named), f"at most {MAX_GROUPS_PER_SESSION} groups")
    return named
