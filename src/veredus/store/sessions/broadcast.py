"""Broadcast: the part of the outbox that appends one message to the sessions of a user, a group or everyone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from veredus.errors import NotReady, StoreError
from veredus.model.delivery import PushResult, PushStatus, Spread
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.sessions.outbox_rows import DEDUPE_MS, Post, PostRow, policy_code, push_result
from veredus.store.sessions.session_partitions import NotReadyTries, SessionPartitions
from veredus.wire import session_keys as keys

POST = load(
    "outbox/post",
    keys="sessions",
    args="channel dedupe_ms mail_entries mail_bytes",
    rows=PostRow,
)
SPREAD = load("outbox/spread", keys="index", args="channel dedupe_ms after limit expiry dedupe_key policy tail")

CHUNK = 20
"""Sessions that one call writes to."""
PARTITIONS_AT_ONCE = 32
MAIL_ENTRIES = 1000
MAIL_BYTES = 1024 * 1024


class Broadcast:
    """Appends to targets of more than one session."""

    partitions: SessionPartitions
    _redis: Redis

    async def append_to_users(self, rows: Sequence[Post]) -> list[list[PushResult]]:
        """Append each message to all sessions of its user, atomically per user. If the user has no session, the result
        is waiting (in the mailbox, if requested) or gone, without a session."""
        replies = await self.partitions.run_rows(
            POST,
            rows,
            lambda row: keys.user_tag(row.user),
            lambda row: PostRow(
                keys.user_tag(keys.check_name("user", row.user)),
                row.user,
                row.expiry,
                keys.user_dedupe(row.user, row.dedupe_key) if row.dedupe_key else "",
                policy_code(row.policy),
                row.wait_ms,
                row.tail,
            ),
            lambda row: len(row.tail),
            head=(DEDUPE_MS, MAIL_ENTRIES, MAIL_BYTES),
        )
        return [
            [push_result(reply[i : i + 2], reply[i + 2].decode()) for i in range(0, len(reply), 3)] for reply in replies
        ]

    async def append_to_user(
        self,
        user: str,
        tail: bytes,
        *,
        expiry: str = "",
        dedupe_key: str = "",
        policy: str = "",
        wait_ms: int = 0,
    ) -> list[PushResult]:
        """Append to all sessions of one user: see `append_to_users`."""
        return (await self.append_to_users([Post(user, tail, expiry, dedupe_key, policy, wait_ms)]))[0]

    async def append_to_group(
        self,
        group: str,
        tail: bytes,
        *,
        expiry: str = "",
        dedupe_key: str = "",
        policy: str = "",
        patience: float = 0.0,
    ) -> Spread:
        """Append to every member of a group, a limited number of sessions per call. Each member gets it at most once;
        one that joins or leaves during the call may or may not. A server that is not ready is retried for `patience`
        seconds."""
        place = keys.group_partitions(keys.check_name("group", group))
        tags = [tag.decode() for tag in await self._redis.command("SMEMBERS", place, key=place)]
        spread, empty = await self._spread(
            sorted(tags), lambda tag: keys.group(tag, group), tail, expiry, dedupe_key, policy, patience
        )
        with suppress(StoreError):  # all members have it; a later sweep forgets the rest
            await self.partitions.forget_groups([(group, tag) for tag in empty])
        return spread

    async def append_to_everyone(
        self, tail: bytes, *, expiry: str = "", dedupe_key: str = "", policy: str = "", patience: float = 0.0
    ) -> Spread:
        """Append to every session, a limited number per call."""
        return (await self._spread(keys.TAGS, keys.sessions, tail, expiry, dedupe_key, policy, patience))[0]

    async def _spread(
        self,
        tags: Sequence[str],
        index_of: Callable[[str], str],
        tail: bytes,
        expiry: str,
        dedupe_key: str,
        policy: str,
        patience: float,
    ) -> tuple[Spread, list[str]]:
        """Walk the indexes of many partitions concurrently. Also returns the partitions without members. Only calls
        that a server was not ready for are repeated, because the members before them have the message."""
        how = policy_code(policy)
        counts: Counter[PushStatus] = Counter()
        seen: set[str] = set()
        waiting = list(reversed(tags))
        walks: dict[str, str] = {}
        again = NotReadyTries(patience)
        while waiting or walks:
            while waiting and len(walks) < PARTITIONS_AT_ONCE:
                walks[waiting.pop()] = ""
            batch = list(walks)

            def args_of(tag: str) -> Sequence[Argument]:
                return (DEDUPE_MS, walks[tag], CHUNK, expiry, dedupe_key, how, tail)

            replies = await self.partitions.run_tags(SPREAD, index_of, args_of, batch)
            refused = again.of(replies)
            for tag, reply in zip(batch, replies, strict=True):
                if isinstance(reply, NotReady):
                    continue
                last, codes = reply
                statuses = Counter(PushStatus(code.decode()) for code in codes)
                del statuses[PushStatus.GONE]  # an ended session that was not swept yet is no member
                if statuses:
                    seen.add(tag)
                    counts += statuses
                if last:
                    walks[tag] = last.decode()
                else:
                    del walks[tag]
            if refused is not None:
                await again.wait(refused, is_begun=bool(seen) and not dedupe_key)
        return Spread(dict(counts)), [tag for tag in tags if tag not in seen]
