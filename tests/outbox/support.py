"""A session log under test, in the words of its users, at a time that the test chooses."""

from __future__ import annotations

import time
from typing import Any

from tests.support.keyspace import Key, snapshot
from tests.support.timed import SetTime
from tests.support.waiting import PATIENCE
from veredus.model.delivery import Cursor, PushResult, Quota, SyncHint
from veredus.model.frames import Kind, Message
from veredus.store.sessions.outbox import Append, Responded
from veredus.store.sessions.sessions import Attached, Created
from veredus.store.store import Store
from veredus.testing.stage import TimedRedis
from veredus.wire import session_keys as keys
from veredus.wire.frames import decode_stored, encode_stored
from veredus.wire.log_entries import Hint, HintProbe, Kick, LogEntry, unpack_hints

BEFORE, AFTER = SyncHint.BEFORE_RESPONSE, SyncHint.AFTER_RESPONSE


def tail(text: str, **fields: Any) -> bytes:
    return encode_stored(Message(body=text.encode(), encoding="raw", **fields))


def text_of(data: bytes) -> str:
    return decode_stored(data).body.decode()


class Log:
    """The store at a time of the test's own, and an independent client as an oracle."""

    def __init__(self, store: Store, client: Any) -> None:
        self.store = store
        self.client = client
        self.now = int(time.time() * 1000)
        self._clock = SetTime(self.now)
        for part in (store.outbox, store.sessions):
            part.partitions.redis = TimedRedis(store.redis, self._clock)
        self._secrets: dict[str, str] = {}
        self.generations: dict[str, int] = {}

    def at(self, now_ms: int) -> None:
        self.now = self._clock.now_ms = now_ms

    def by_the_server(self) -> None:
        """From now on the scripts use the server's own time."""
        self._clock.now_ms = None

    def later(self, ms: int) -> None:
        self.at(self.now + ms)

    async def create(self, user: str = "bob", **settings: Any) -> Created:
        settings = {
            "node": "n1", "connection": "c1", "secret_hash": "h0", "quota": Quota(), "ttl_ms": 60_000, **settings
        }  # fmt: skip
        created = await self.store.sessions.create(user, **settings)
        self._secrets[created.sid] = settings["secret_hash"]
        self.generations[created.sid] = created.generation
        return created

    async def create_used(self, user: str = "bob", **settings: Any) -> Created:
        """A session that has acknowledged all that it was sent: nothing of that counts any more."""
        created = await self.create(user, **settings)
        for seq, text in enumerate(("one", "two", "three" * 50), 1):
            assert (await self.push(created.sid, text))[0].seq == seq
            assert await self.store.outbox.ack([(created.sid, seq, 0)]) == ["ok"]
        assert await self.entries(created.sid) == []
        return created

    async def attach(self, sid: str, cursor: Cursor, **settings: Any) -> Attached:
        """With the right secret, and a new one each time, unless told otherwise."""
        before = self._secrets.get(sid, "h0")
        settings = {
            "user": "bob", "secret_hash": before, "next_secret_hash": before + "x", "node": "n2", "connection": "c2",
            **settings,
        }  # fmt: skip
        attached = await self.store.sessions.attach(sid, cursor=cursor, **settings)
        if attached.generation:
            self._secrets[sid] = settings["next_secret_hash"]
            self.generations[sid] = attached.generation
        return attached

    async def push(self, sid: str, *texts: str, **settings: Any) -> list[PushResult]:
        return await self.store.outbox.append([Append(sid, tail(text), **settings) for text in texts])

    async def accept(self, sid: str, rid: int, ms: int = 30_000) -> str:
        return await self.store.outbox.accept(sid, rid, self.now + ms, self.generations[sid])

    async def bind(self, sid: str, rid: int, hint: SyncHint, text: str, **settings: Any) -> PushResult:
        return await self.store.outbox.bind(sid, rid, hint, tail(text), **settings)

    async def respond(self, sid: str, rid: int, text: str = "response", **settings: Any) -> Responded:
        data = tail(text, kind=Kind.RESPONSE, rid=rid)
        return await self.store.outbox.respond(sid, rid, data, **settings)

    async def entries(self, sid: str) -> list[LogEntry]:
        (excerpt,) = await self.store.outbox.read([(sid, 0, 100_000, 1 << 40)])
        assert excerpt is not None
        assert [entry.seq for entry in excerpt.entries] == list(range(excerpt.floor + 1, excerpt.top + 1))
        return excerpt.entries

    async def texts(self, sid: str) -> list[str]:
        return [text_of(entry.tail) for entry in await self.entries(sid)]

    async def cursor(self, sid: str, seq: int) -> Cursor:
        (excerpt,) = await self.store.outbox.read([(sid, seq, 1, 1)])
        assert excerpt is not None
        ts = excerpt.floor_ts if seq == excerpt.floor else excerpt.entries[0].ts
        return Cursor(excerpt.epoch, seq, ts)

    async def meta(self, sid: str) -> dict[str, str]:
        found = await self.client.hgetall(keys.meta(sid))
        return {name.decode(): value.decode() for name, value in found.items()}

    async def everything(self) -> dict[str, Key]:
        return await snapshot(self.client)


class Ears:
    """What a node is told, heard by the independent client."""

    def __init__(self, client: Any, node: str) -> None:
        self._pubsub = client.pubsub()
        self._node = node

    async def __aenter__(self) -> Ears:
        await self._pubsub.subscribe(keys.hints(self._node))
        await self._pubsub.get_message(timeout=PATIENCE)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pubsub.aclose()

    async def messages(self, count: int) -> list[list[Hint | Kick | HintProbe]]:
        heard: list[list[Hint | Kick | HintProbe]] = []
        while len(heard) < count:
            message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=PATIENCE)
            assert message is not None, f"only {len(heard)} of {count} messages came"
            heard.append(unpack_hints(message["data"]))
        return heard

    async def silent(self) -> bool:
        return await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=0.05) is None
