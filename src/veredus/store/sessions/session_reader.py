"""SessionReader: reads sessions, by user and by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.store.sessions.session_partitions import SessionPartitions, raise_first
from veredus.store.sessions.session_rows import SessionId, SessionRow, session_row
from veredus.wire import session_keys as keys

SHOW = load("session/show", keys="sessions", args="", rows=SessionId)

LISTED_PARTITIONS = 32


class SessionReader:
    """The read-only part of Sessions."""

    def __init__(self, redis: Redis, partitions: SessionPartitions) -> None:
        self._redis = redis
        self.partitions = partitions

    async def sessions_of(self, user: str) -> list[SessionRow]:
        """All sessions of a user; the one attached last comes last."""
        return await self.show(await self.sids_of(user))

    async def sids_of(self, user: str) -> list[str]:
        """The ids of a user's sessions; some may have ended."""
        index = keys.user(keys.check_name("user", user))
        found = [text(sid) for sid in await self._redis.command("ZRANGE", index, 0, -1, key=index)]
        return [sid for sid in found if keys.is_sid(sid)]

    async def listing(self, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """Sessions in the order of their ids, after the id `after`. Fewer than `limit` means the end."""
        return await self._page(keys.TAGS, keys.sessions, after, limit)

    async def members(self, group: str, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        """Sessions in a group, in the order of their ids, after the id `after`. Fewer than `limit` means the end."""
        place = keys.group_partitions(keys.check_name("group", group))
        known = {text(tag) for tag in await self._redis.command("SMEMBERS", place, key=place)}
        tags = [tag for tag in keys.TAGS if tag in known]
        return await self._page(tags, lambda tag: keys.group(tag, group), after, limit)

    async def _page(
        self, tags: Sequence[str], key_of: Callable[[str], str], after: str, limit: int
    ) -> list[SessionRow]:
        """A page from the sorted sets of these partitions, without ended sessions."""
        low: str | bytes = "-"
        if after:
            first = keys.sid_tag(after)
            tags = [tag for tag in tags if tag >= first]
            low = f"({after}" if first in tags else "-"
        found: list[SessionRow] = []
        position = 0
        while position < len(tags) and len(found) < limit:
            part = tags[position : position + LISTED_PARTITIONS]
            lows = [low, *["-"] * (len(part) - 1)]
            replies = await self._redis.command_each(
                [
                    ("ZRANGEBYLEX", key_of(tag), lowest, "+", "LIMIT", 0, limit)
                    for tag, lowest in zip(part, lows, strict=True)
                ]
            )
            raise_first(replies)
            sids: list[str] = []
            low = "-"
            for reply in replies:
                sids += [sid for one in reply if keys.is_sid(sid := text(one))]
                if len(reply) == limit:  # this partition may have more
                    low = b"(" + reply[-1]
                    break
                position += 1
            while sids and len(found) < limit:
                wanted = limit - len(found)
                found += await self.show(sids[:wanted])
                sids = sids[wanted:]
        return found

    async def count(self) -> int:
        """The number of sessions, attached or not."""
        replies = await self._redis.command_each([("ZCARD", keys.sessions(tag)) for tag in keys.TAGS])
        raise_first(replies)
        return sum(int(reply) for reply in replies)

    async def show(self, sids: Sequence[str]) -> list[SessionRow]:
        """How these sessions stand; those that are gone are left out."""
        replies = await self.partitions.run_rows(SHOW, sids, keys.sid_tag, SessionId)
        return [session_row(sid, reply) for sid, reply in zip(sids, replies, strict=True) if reply]
