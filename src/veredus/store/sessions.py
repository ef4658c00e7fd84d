"""Sessions: made, attached to a connection, left, resumed elsewhere, swept and closed, each in one atomic step."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Container, Iterable, Sequence

from veredus.errors import ConfigError
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
from veredus.store.session_rows import Attached, Created, SessionRow, Swept, session_row
from veredus.wire import session_keys as keys
from veredus.wire.entries import LATE_MARK, unpack_entry

__all__ = ["Attached", "Created", "SessionRow", "Sessions", "Swept"]

logger = logging.getLogger("veredus.gateway")

CREATE = load(
    "session/create",
    keys="partition",
    args="channel sid user epoch node connection secret quota_entries quota_bytes policy ttl_ms max_sessions when_full"
    " count {group}* [now_ms]",
)
ATTACH = load(
    "session/attach",
    keys="partition",
    args="channel sid user secret next_secret grace_ms epoch seq ts next_epoch node connection first max_bytes"
    " rid_floor count {group}* [now_ms]",
)
GRANT = load("session/grant", keys="partition", args="channel sid count {group}* [now_ms]")
DETACH = load("session/detach", keys="partition", args="channel count {sid generation}* [now_ms]")
CLOSE = load("session/close", keys="partition", args="channel count {sid reason}* [now_ms]")
SWEEP = load(
    "session/sweep", keys="partition", args="channel limit late_mark extra nodes {node}* count {tag}* [now_ms]"
)
JOIN = load("session/join", keys="partition", args="channel most count {sid group}* [now_ms]")
LEAVE = load("session/leave", keys="partition", args="channel count {sid group}* [now_ms]")
SHOW = load("session/show", keys="partition", args="channel count {sid}* [now_ms]")

SWEEP_LIMIT = 20
SWEEP_PARTITIONS = 32
"""In one call, on one server."""
LISTED_PARTITIONS = 32
FIRST = 64
FIRST_BYTES = 256 * 1024
WHEN_FULL = ("oldest", "refuse")


class Sessions:
    """The names of users, groups and nodes may be any text of 1 to 200 characters; an anonymous session has user ''."""

    def __init__(self, redis: Redis, partitions: Partitions | None = None) -> None:
        self._redis = redis
        self.partitions = partitions or Partitions(redis)
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
    ) -> Created:
        """A new session, attached to this connection, with what waited in the user's mailbox as its first entries. A
        user with `max_sessions` already loses the one that was attached longest ago (`oldest`), or gets no new one
        (`refuse`)."""
        if when_full not in WHEN_FULL:
            raise ConfigError("when_full", when_full, f"one of {', '.join(WHEN_FULL)}", known=WHEN_FULL)
        if user:
            keys.check_name("user", user)
        groups = _named(groups)
        sid = sid or keys.new_sid(user)
        epoch = secrets.token_hex(4)
        await self._announce(sid, groups)
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
                len(groups),
                *groups,
            ),
        )
        await self._announce(sid, groups)
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
    ) -> Attached:
        """Resume a session on this connection. The secret is exchanged for the next one (the one presented stays good
        for the session's TTL, because the welcome may be lost), whatever connection had the session is told to let go,
        everything up to the cursor is acknowledged. A cursor that does not fit the log begins a new epoch; what is in
        the log is then delivered under it. `groups` are those that the client's token names now: see `grant`."""
        try:
            tag = keys.sid_tag(sid)
        except ConfigError:
            return Attached(Verdict.UNKNOWN, Reason.UNKNOWN)  # clients send what they like
        named = _named(groups)
        await self._announce(sid, named)
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
                len(named),
                *named,
            ),
        )
        await self._announce(sid, named)
        result, reason = reply[0].decode(), reply[1].decode()
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
        for expired, orphans, due, flushed, dropped, more in replies:
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
        await self._announce(sid, [group])
        reply = (
            await self.partitions.run_rows(
                JOIN,
                [(sid, group)],
                lambda row: keys.sid_tag(row[0]),
                lambda row: row,
                head=(MAX_GROUPS_PER_SESSION,),
            )
        )[0]
        await self._announce(sid, [group])
        if reply == -1:
            raise ConfigError("group", group, f"at most {MAX_GROUPS_PER_SESSION} groups per session")
        return bool(reply)

    async def grant(self, sid: str, groups: Iterable[str]) -> bool:
        """The client has a new token: the session is in the groups that it names, and no longer in those that only the
        token before named. What the client or the app has joined stays. False if the session is gone."""
        named = _named(groups)
        await self._announce(sid, named)
        reply = await self.partitions.run(GRANT, keys.sid_tag(sid), (sid, len(named), *named))
        await self._announce(sid, named)
        return bool(reply)

    async def leave(self, sid: str, group: str) -> bool:
        """False if it was not a member."""
        replies = await self.partitions.run_rows(
            LEAVE, [(sid, group)], lambda row: keys.sid_tag(row[0]), lambda row: row
        )
        if replies[0] == 2:
            await self.partitions.forget_group(group, keys.sid_tag(sid))
        return bool(replies[0])

    async def sessions_of(self, user: str) -> list[SessionRow]:
        """All sessions of a user, the one attached last at the end."""
        index = keys.user(keys.check_name("user", user))
        found = [text(sid) for sid in await self._redis.command("ZRANGE", index, 0, -1, key=index)]
        return await self.show([sid for sid in found if keys.is_sid(sid)])

    async def listing(self, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """Sessions in the order of their ids, from the one behind `after` on; fewer than `limit` means that it is the
        end."""
        found: list[SessionRow] = []
        tags = keys.TAGS[keys.TAGS.index(keys.sid_tag(after)) if after else 0 :]
        for start in range(0, len(tags), LISTED_PARTITIONS):
            sids: list[str] = []
            part = tags[start : start + LISTED_PARTITIONS]
            lows = [f"({after}" if after[:4] == tag else "-" for tag in part]
            replies = await self._redis.command_each(
                [
                    ("ZRANGEBYLEX", keys.sessions(tag), low, "+", "LIMIT", 0, limit)
                    for tag, low in zip(part, lows, strict=True)
                ]
            )
            raise_first(replies)
            for reply in replies:
                sids += [sid for one in reply if keys.is_sid(sid := text(one))]
            while sids and len(found) < limit:
                wanted = limit - len(found)
                found += await self.show(sids[:wanted])
                sids = sids[wanted:]
            if len(found) >= limit:
                break
        return found

    async def count(self) -> int:
        """How many sessions there are, attached or not."""
        replies = await self._redis.command_each([("ZCARD", keys.sessions(tag)) for tag in keys.TAGS])
        raise_first(replies)
        return sum(int(reply) for reply in replies)

    async def show(self, sids: Sequence[str]) -> list[SessionRow]:
        """How these sessions stand; those that are gone are left out."""
        replies = await self.partitions.run_rows(SHOW, sids, keys.sid_tag, lambda sid: (sid,))
        return [session_row(sid, reply) for sid, reply in zip(sids, replies, strict=True) if reply]

    async def _announce(self, sid: str, groups: Sequence[str]) -> None:
        """Where a group has members. Before the join, so that a crash hides nobody, and after it: see
        `Partitions.forget_group`."""
        places = [keys.group_partitions(keys.check_name("group", group)) for group in groups]
        if places:
            raise_first(await self._redis.command_each([("SADD", place, keys.sid_tag(sid)) for place in places]))


def _named(groups: Iterable[str]) -> list[str]:
    """The groups that a token names, each once."""
    named = list(dict.fromkeys(groups))
    if len(named) > MAX_GROUPS_PER_SESSION:
        raise ConfigError("groups", len(named), f"at most {MAX_GROUPS_PER_SESSION} groups")
    return named
