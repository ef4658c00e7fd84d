"""One message for many sessions: of a user, of a group, of everyone; the part of the outbox that finds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from veredus.errors import NotReady, StoreError
from veredus.model.delivery import PushResult, Spread, Status
from veredus.store.connection import Argument
from veredus.store.outbox_rows import DEDUPE_MS, Post, policy_code, push_result
from veredus.store.partitions import NotReadyTries, Partitions
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.wire import session_keys as keys

POST = load(
    "outbox/post",
    keys="partition",
    args="channel dedupe_ms mail_entries mail_bytes count {tag user expiry key policy wait tail}* [now_ms]",
)
SPREAD = load(
    "outbox/spread", keys="partition", args="channel dedupe_ms index after limit expiry key policy tail [now_ms]"
)

CHUNK = 20
"""Sessions that one call writes to when a message goes to a group or to everyone."""
PARTITIONS_AT_ONCE = 32
MAIL_ENTRIES = 1000
MAIL_BYTES = 1024 * 1024


class Spreading:
    """What the outbox can do with targets that are more than one session."""

    partitions: Partitions
    _redis: Redis

    async def append_to_users(self, rows: Sequence[Post]) -> list[list[PushResult]]:
        """Each to all sessions of a user, in one atomic step per user. Without a session: waiting (in the mailbox, if
        asked) or gone, with no session named."""
        replies = await self.partitions.run_rows(
            POST,
            rows,
            lambda row: keys.user_tag(row.user),
            lambda row: (
                keys.user_tag(keys.check_name("user", row.user)),
                row.user,
                row.expiry,
                row.dedupe_key,
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
        """To all sessions of one user: see `append_to_users`."""
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
        """To every member of a group, a bounded number of sessions per call. Each member gets it at most once; who
        joins or leaves meanwhile may or may not. A server that is not ready is asked again for `patience` seconds."""
        place = keys.group_partitions(keys.check_name("group", group))
        tags = [tag.decode() for tag in await self._redis.command("SMEMBERS", place, key=place)]
        spread, empty = await self._spread(
            sorted(tags), lambda tag: keys.group(tag, group), tail, expiry, dedupe_key, policy, patience
        )
        with suppress(StoreError):  # all members have it; what is not forgotten now is by a sweep
            await self.partitions.forget_groups([(group, tag) for tag in empty])
        return spread

    async def append_to_everyone(
        self, tail: bytes, *, expiry: str = "", dedupe_key: str = "", policy: str = "", patience: float = 0.0
    ) -> Spread:
        """To every session there is, a bounded number per call."""
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
        """Walk the indexes of many partitions side by side. Also returns the partitions in which nobody was found. Only
        the calls that a server was not ready for are made again: the members before them have it."""
        how = policy_code(policy)
        counts: Counter[Status] = Counter()
        seen: set[str] = set()
        waiting = list(reversed(tags))
        walks: dict[str, str] = {}
        again = NotReadyTries(patience)
        while waiting or walks:
            while waiting and len(walks) < PARTITIONS_AT_ONCE:
                walks[waiting.pop()] = ""
            batch = list(walks)

            def args_of(tag: str) -> Sequence[Argument]:
                return (DEDUPE_MS, index_of(tag), walks[tag], CHUNK, expiry, dedupe_key, how, tail)

            replies = await self.partitions.run_tags(SPREAD, args_of, batch)
            refused = again.of(replies)
            for tag, reply in zip(batch, replies, strict=True):
                if isinstance(reply, NotReady):
                    continue
                last, codes = reply
                statuses = Counter(Status(code.decode()) for code in codes)
                del statuses[Status.GONE]  # whoever has ended, and was not swept yet, is none of them any more
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
