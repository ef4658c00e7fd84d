"""app.push and its family, as users call them; in batches, durable if asked, and with errors that name the field."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.outbox.support import Log
from tests.support.proxy import proxy_before
from tests.support.sentinels import is_replicating
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import pause, until_sync
from veredus import App, ConfigError, PayloadError
from veredus.client.ordering import MessageOrderingManager, OrderedMessageSender
from veredus.errors import ConnectionLost, NotConfirmed, NotReady
from veredus.model.delivery import NotifyItem, PushResult, PushStatus, Spread, SyncHint
from veredus.model.frames import Kind, Message
from veredus.store.sessions.outbox import APPEND
from veredus.store.store import Store, connect
from veredus.wire.frames import decode_stored, encode_stored


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    yield app
    await app.close()


async def messages(log: Log, sid: str) -> list[Message]:
    return [decode_stored(entry.tail) for entry in await log.entries(sid)]


async def test_every_field_of_a_push_reaches_the_log(app: App, log: Log) -> None:
    sid = (await log.create()).sid
    result = await app.push(
        {"n": 1}, session=sid, type="news", title="T", content="C", metadata={"a": "b"}, ttl=1.5, dedupe_key="k"
    )
    assert result == PushResult(PushStatus.QUEUED, 1, sid)
    assert (await app.push({"n": 1}, session=sid, dedupe_key="k")).status == "duplicate"
    (message,) = await messages(log, sid)
    assert (message.kind, message.type, message.title, message.content) == (Kind.NOTIFY, "news", "T", "C")
    assert (message.metadata, message.body, message.encoding) == ({"a": "b"}, b'{"n":1}', "json")
    assert abs(message.create_time - log.now) < 60_000
    (entry,) = await log.entries(sid)
    assert 1499 <= entry.expiry - entry.ts // 1000 <= 1501
    await app.push(b"\x00\xff", session=sid)
    await app.push(session=sid, type="bare")
    assert [(m.body, m.encoding) for m in (await messages(log, sid))[1:]] == [(b"\x00\xff", "raw"), (b"", "json")]


async def test_every_target(app: App, log: Log) -> None:
    one, two = await log.create("bob"), await log.create("eve")
    assert await app.push(1, user="bob") == [PushResult(PushStatus.QUEUED, 1, one.sid)]
    assert await app.push(2, user="joe") == [PushResult(PushStatus.GONE)]
    assert await app.push(3, users=["bob", "eve", "bob", "joe"], wait=60) == {
        "bob": [PushResult(PushStatus.QUEUED, 2, one.sid)],
        "eve": [PushResult(PushStatus.QUEUED, 1, two.sid)],
        "joe": [PushResult(PushStatus.WAITING)],
    }
    assert await app.join(two.sid, "room")
    spread = await app.push(4, group="room")
    assert isinstance(spread, Spread)
    assert spread.queued == 1
    assert (await messages(log, two.sid))[-1]._replace(create_time=0) == Message(
        kind=Kind.GROUP, group="room", body=b"4"
    )
    assert await app.leave(two.sid, "room")
    everyone = await app.push(5, everyone=True)
    assert isinstance(everyone, Spread)
    assert everyone.counts == {PushStatus.QUEUED: 2}
    assert [m.body for m in await messages(log, one.sid)] == [b"1", b"3", b"5"]


async def test_binding_in_both_ways_of_saying_it(app: App, log: Log) -> None:
    sid = (await log.create()).sid
    assert (await app.push("b", session=sid, bind=(123, "before"))).status == "held"
    held = await app.push("a", session=sid, bind=123, sync_hint=SyncHint.AFTER_RESPONSE, type="t", title="x")
    assert held == PushResult(PushStatus.HELD, 0, sid)
    await log.accept(sid, 123)
    await log.respond(sid, 123)
    found = await messages(log, sid)
    assert [m.body for m in found] == [b'"b"', b"response", b'"a"']
    assert [(m.sync_hint, m.bind_client_seq_id) for m in found] == [(1, 123), (0, 0), (2, 123)]
    assert (found[2].type, found[2].title) == ("t", "x")
    late = await app.push("late", session=sid, bind=(123, "before"))
    assert late == PushResult(PushStatus.LATE, 4, sid)
    too_late = await app.push("late", session=sid, bind=(123, "before"), late="reject")
    assert too_late == PushResult(PushStatus.TOO_LATE, 0, sid)


async def test_the_names_of_old(app: App, log: Log) -> None:
    """OrderedMessageSender and MessageOrderingManager, with notifies that arrive whole."""
    sid = (await log.create()).sid
    item = NotifyItem(data=b'"d"', type="t", title="T", content="C", metadata={"k": "v"}, create_time=5)
    sender = OrderedMessageSender(app.notifier())
    manager = MessageOrderingManager(sid, log.store.outbox, app.notifier())
    assert (await sender.send_ordered_message(sid, item)).seq == 1
    assert (await manager.add_notify_bind_after_rsp(123, item)).status is PushStatus.HELD
    assert (await manager.add_notify_bind_before_rsp(123, item)).status is PushStatus.HELD
    assert await manager.get_notify_counts(123) == (1, 1)
    response = encode_stored(Message(kind=Kind.RESPONSE, rid=123))
    responded = await manager.proc_with_notify_binds(123, response, before=[item], after=[item])
    assert (responded.status, responded.seq, responded.first, responded.last) == ("sent", 4, 2, 6)
    found = await messages(log, sid)
    whole = Message(kind=Kind.NOTIFY, type="t", title="T", content="C", metadata={"k": "v"}, body=b'"d"', create_time=5)
    assert await manager.get_notify_counts(123) == (0, 0)
    hints = [0, 1, 1, None, 2, 2]
    for message, hint in zip(found, hints, strict=True):
        if hint is None:
            assert (message.kind, message.rid) == (Kind.RESPONSE, 123)
        else:
            assert message == whole._replace(sync_hint=hint, bind_client_seq_id=123 if hint else 0)


@VALKEY_ONLY
async def test_concurrent_pushes_share_round_trips(app: App, log: Log) -> None:
    sids = [(await log.create(f"u{i}")).sid for i in range(10)]
    await app.push(0, session=sids[0])
    await log.client.config_resetstat()
    results = await asyncio.gather(*[app.push(n, session=sids[n % 10]) for n in range(1, 1000)])
    assert all(result.ok for result in results)
    calls = (await log.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert calls <= 10
    for i, sid in enumerate(sids):
        assert [int(m.body) for m in await messages(log, sid)] == list(range(i, 1000, 10))


def test_push_sync(valkey_server: RealServer) -> None:
    async def make() -> str:
        store = Store(connect(valkey_server.url))
        sid = (await Log(store, None).create()).sid
        await store.close()
        return sid

    sid = asyncio.run(make())
    app = App(valkey_server.url)
    assert app.push_sync({"n": 1}, session=sid) == PushResult(PushStatus.QUEUED, 1, sid)
    app.close_sync()


async def test_presence(app: App, log: Log) -> None:
    assert not (await app.presence("bob")).online
    one = await log.create("bob", node="n1")
    await log.create("bob", node="dead")
    await log.store.nodes.beat("n1")
    presence = await app.presence("bob")
    assert presence.online
    assert [row.sid for row in presence.connected] == [one.sid]
    assert len(presence.sessions) == 2
    await log.store.sessions.detach([(one.sid, 1)])
    assert not (await app.presence("bob")).online


@VALKEY_ONLY
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "target"),
        ({"session": "p000-x", "user": "bob"}, "target"),
        ({"session": "nonsense"}, "session"),
        ({"sesion": "p000-x"}, "option"),
        ({"user": ""}, "user"),
        ({"user": "bob", "bind": 1, "sync_hint": 1}, "bind"),
        ({"session": "p000-x", "sync_hint": 1}, "bind"),
        ({"session": "p000-x", "bind": (1, "befor")}, "bind"),
        ({"session": "p000-x", "bind": 0, "sync_hint": 1}, "bind"),
        ({"session": "p000-x", "sync_hint": 7}, "sync_hint"),
        ({"session": "p000-x", "policy": "drop"}, "policy"),
        ({"session": "p000-x", "late": "sent"}, "late"),
        ({"session": "p000-x", "on_fail": "x"}, "on_fail"),
        ({"session": "p000-x", "durability": "disk"}, "durability"),
        ({"session": "p000-x", "ttl": -1}, "ttl"),
        ({"session": "p000-x", "dedupe_key": "k" * 129}, "dedupe_key"),
        ({"session": "p000-x", "title": "x" * 100_000}, "title"),
        ({"session": "p000-x", "title": 5}, "title"),
        ({"session": "p000-x", "metadata": {"a": 1}}, "metadata"),
        ({"session": "p000-x", "metadata": ["a"]}, "metadata"),
        ({"session": 5}, "session"),
        ({"users": "bob"}, "users"),
        ({"users": 5}, "users"),
    ],
)
async def test_bad_input_names_the_field(app: App, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        await app.push(1, **settings)
    with pytest.raises(PayloadError):
        await app.push(object(), user="bob")


async def test_a_lost_connection_is_repeated_only_with_a_key(new_server: Callable[..., RealServer]) -> None:
    server = new_server("--appendonly", "yes")
    app = App(server.url, patience=10, timeout=1)
    store = app._client().store
    log = Log(store, None)
    sid = (await log.create()).sid
    log.by_the_server()
    server.kill()
    with pytest.raises(ConnectionLost):
        await app.push(1, session=sid)
    keyed = asyncio.create_task(app.push(2, session=sid, dedupe_key="k"))
    await pause(0.2, proves="with a key it is tried until the server is back")
    assert not keyed.done()
    await asyncio.to_thread(server.start)
    assert (await keyed).ok
    await app.close()


@VALKEY_ONLY
async def test_a_push_whose_reply_was_lost_is_in_the_log_once(server: RealServer, log: Log) -> None:
    sid = (await log.create()).sid
    async with proxy_before(server.socket) as proxy, App(proxy.url) as app:
        await app.push("known", session=sid)  # now the server knows the script
        proxy.marker = APPEND.sha.encode()
        proxy.lose_reply = 1
        with pytest.raises(ConnectionLost):
            await app.push("without a key", session=sid)
        proxy.lose_reply = 1
        assert (await app.push("with a key", session=sid, dedupe_key="k")).status == "duplicate"
    bodies = [message.body for message in await messages(log, sid)]
    assert bodies == [b'"known"', b'"without a key"', b'"with a key"']


async def test_durability(new_server: Callable[..., RealServer]) -> None:
    master = new_server("--appendonly", "yes", "--appendfsync", "always")
    app = App(master.url, patience=0.2)
    store = app._client().store
    log = Log(store, None)
    sid = (await log.create()).sid
    log.by_the_server()
    assert (await app.push(1, session=sid, durability="fsync")).ok
    with pytest.raises(NotReady, match="no replica is connected"):
        await app.push(2, session=sid, durability="replica", dedupe_key="k")
    assert (await app.push(2, session=sid, dedupe_key="k")).status == "queued", "it was refused before it was written"
    await app.close()


async def test_a_server_that_cannot_confirm_says_so(app: App, log: Log) -> None:
    """Redis 6.2 does not know the command; a Valkey without a log on disk refuses it."""
    sid = (await log.create()).sid
    with pytest.raises(ConfigError, match=r"^durability: got 'fsync', expected any or replica"):
        await app.push(1, session=sid, durability="fsync")
    assert await messages(log, sid) == []


async def test_a_replica_confirms(new_server: Callable[..., RealServer]) -> None:
    master = new_server("--repl-diskless-sync-delay", "0", port=free_port())
    replica = new_server("--replicaof", "127.0.0.1", str(master.port))
    until_sync(lambda: is_replicating(replica), what="the replication")
    app = App(master.url)
    store = app._client().store
    log = Log(store, None)
    sid = (await log.create()).sid
    log.by_the_server()
    results = await asyncio.gather(*[app.push(n, session=sid, durability="replica") for n in range(20)])
    assert sorted(result.seq for result in results) == list(range(1, 21))
    replica.freeze()
    try:
        with pytest.raises(NotConfirmed, match=r"0 of 1 replicas confirmed it within 0.5 s"):
            await app.push(21, session=sid, durability="replica")
    finally:
        replica.thaw()
    assert len(await messages(Log(store, None), sid)) == 21
    await app.close()


_SHOP = """
import asyncio
from tests.outbox.support import Log
from veredus import App

async def main():
    async with App() as app:
        log = Log(app._client().store, None)
        sid = (await log.create(groups=["room"])).sid
        assert (await app.push(1, session=sid, dedupe_key="k")).seq == 1
        assert (await app.push(2, user="bob", dedupe_key="k"))[0].seq == 2
        assert (await app.push(3, user="eve", wait=60))[0].status == "waiting"
        assert (await app.push(4, group="room")).queued == (await app.push(5, everyone=True)).queued == 1
        await app.push(6, session=sid, bind=(1, "before"))
        await log.accept(sid, 2)
        await log.store.nodes.beat("n1")
        await log.store.sessions.sweep()
        print("good")

asyncio.run(main())
"""


async def test_a_prefix_of_its_own_holds_for_the_gateway_too(url: str, log: Log) -> None:
    environment = {**os.environ, "VEREDUS_KEY_PREFIX": "shop", "VEREDUS_REDIS_URL": url}
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _SHOP], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "good\n", ended.stderr
    names = list(await log.everything())
    assert len(names) > 10
    assert all(name.startswith("shop:gw:") for name in names), names
