"""New tasks: many callers share a round trip, and a lost connection neither loses nor doubles a task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.keyspace import check_invariant
from tests.support.proxy import proxy_before
from tests.support.queue import Queue
from tests.support.servers import PRODUCTS, VALKEY_ONLY, RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus import App
from veredus.errors import CommandRefused, ConnectionLost, StoreError, TaskIdConflict
from veredus.store.store import Store, connect
from veredus.store.tasks import intake
from veredus.store.tasks.intake import CREATED, ID_EXISTS, LOCKED, NewTask
from veredus.wire import keys

LOCK = "asynq:{q}:unique:t:1"


async def script_calls(client: Any) -> int:
    stats = await client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


async def test_two_hundred_callers_need_few_round_trips_and_each_gets_its_own_code(
    store: Store, redis_client: Any
) -> None:
    await store.intake.add("q", NewTask("t7", b""))
    await redis_client.set(LOCK, "other")
    before = await script_calls(redis_client)
    entries = [
        NewTask(f"t{i}", b"m", unique_key=LOCK, unique_ttl=60) if i % 10 == 3 else NewTask(f"t{i}", b"m")
        for i in range(200)
    ]
    codes = await asyncio.gather(*[store.intake.add("q", entry) for entry in entries])
    for i, code in enumerate(codes):
        assert code == (ID_EXISTS if i == 7 else LOCKED if i % 10 == 3 else CREATED)
    assert await script_calls(redis_client) - before <= 4
    q = Queue(store.redis, redis_client)
    assert await q.pending() == ["t7"] + [f"t{i}" for i in range(200) if i != 7 and i % 10 != 3]


async def test_due_now_and_due_later_and_other_queues_do_not_mix(store: Store, redis_client: Any) -> None:
    await asyncio.gather(
        store.intake.add("q", NewTask("now", b"")),
        store.intake.add("q", NewTask("later", b"", due="+60000")),
        store.intake.add("p", NewTask("other", b"")),
    )
    assert await Queue(store.redis, redis_client).pending() == ["now"]
    assert list(await Queue(store.redis, redis_client).scores("due")) == ["later"]
    assert await Queue(store.redis, redis_client, "p").pending() == ["other"]
    assert await store.queues() == ["p", "q"]
    assert await check_invariant(redis_client) == []


async def test_a_queue_is_registered_once_and_again_after_a_while(
    store: Store, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        await store.intake.add_many("q", [NewTask(f"a{i}", b"")])
    assert (await redis_client.info("commandstats"))["cmdstat_sadd"]["calls"] == 1
    await redis_client.delete(keys.QUEUES)
    monkeypatch.setattr(intake, "REGISTER_AGAIN", 0.0)
    await store.intake.add_many("q", [NewTask("b", b"")])
    assert await store.queues() == ["q"]


@pytest.mark.parametrize("due", ["", "+60000"])
async def test_a_lost_reply_does_not_enqueue_twice(server: RealServer, redis_client: Any, due: str) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url))
        await store.intake.add("q", NewTask("first", b"another", due=due))
        proxy.lose_reply = 1
        entries = [NewTask("a", b"A", due=due), NewTask("b", b"B", due=due), NewTask("first", b"", due=due)]
        codes = await store.intake.add_many("q", entries)
        await store.close()
    assert proxy.lose_reply == 0
    assert codes == [CREATED, CREATED, ID_EXISTS]
    q = Queue(store.redis, redis_client)
    assert (await q.pending() if not due else sorted(await q.scores("due"))) == (
        ["first", "a", "b"] if not due else ["a", "b", "first"]
    )
    assert await check_invariant(redis_client) == []


async def test_a_lost_request_is_sent_again(server: RealServer, redis_client: Any) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url))
        await store.ping()
        proxy.lose_request = 2
        codes = await asyncio.gather(*[store.intake.add("q", NewTask(f"t{i}", b"")) for i in range(50)])
        await store.close()
    assert codes == [CREATED] * 50
    assert proxy.lose_request == 0
    assert len(await Queue(store.redis, redis_client).pending()) == 50


async def test_an_id_of_the_users_own_that_existed_before_is_reported_after_a_lost_reply(
    server: RealServer, redis_client: Any
) -> None:
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url))
        await store.intake.add("q", NewTask("mine", b"old"))
        proxy.lose_reply = 1
        assert await store.intake.add("q", NewTask("mine", b"new")) == ID_EXISTS
        await store.close()
    assert (await Queue(store.redis, redis_client).fields("mine"))["msg"] == "old"


@pytest.mark.parametrize("product", PRODUCTS)
async def test_a_real_conflict_is_reported_although_the_server_was_not_ready_at_first(
    new_server: Callable[..., RealServer], product: str
) -> None:
    """Whoever is not ready has run nothing: what is there now is not by an earlier try, even if it looks the same."""
    server = new_server(product=product)
    store = Store(connect(server.url), patience=30)
    for one in (NewTask("mine", b"same"), NewTask("other", b"same")):
        await store.intake.add("q", one)
    with server.client() as client:

        def calls() -> int:
            stats: dict[str, Any] = client.info("commandstats")
            return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))

        client.config_set("min-replicas-to-write", 1)  # from now on: NOREPLICAS
        before = calls()
        entries = [NewTask("mine", b"same"), NewTask("other", b"same"), NewTask("new", b"new")]
        adding = asyncio.ensure_future(store.intake.add_many("q", entries))
        await until(lambda: calls() > before, what="a try that is refused")
        client.config_set("min-replicas-to-write", 0)
        assert await adding == [ID_EXISTS, ID_EXISTS, CREATED]
    await store.close()


@VALKEY_ONLY
async def test_patience_ends(server: RealServer) -> None:
    store = Store(connect("unix:///nowhere/x.sock"), patience=0.3)
    begin = time.monotonic()
    with pytest.raises(ConnectionLost):
        await store.intake.add("q", NewTask("a", b""))
    assert time.monotonic() - begin < PATIENCE


async def test_a_call_does_not_leave_after_its_patience_when_connecting_takes_long(
    server: RealServer, redis_client: Any
) -> None:
    """By then its record may be gone, and a repeated call would store the task a second time."""
    async with proxy_before(server.socket) as proxy:
        store = Store(connect(proxy.url), patience=0.5)
        await store.intake.add("q", NewTask("first", b""))
        proxy.lose_request, proxy.rate = 1, 4096  # from now on, connecting takes two seconds
        with pytest.raises(ConnectionLost):
            await store.intake.add("q", NewTask("late", b""))
        await store.ping()  # what had left before would be stored by now
        await store.close()
    assert await Queue(store.redis, redis_client).pending() == ["first"]


async def test_a_restart_within_the_patience_is_not_noticed(new_server: Callable[..., RealServer]) -> None:
    server = new_server()
    store = Store(connect(server.url), patience=PATIENCE)
    await store.ping()
    server.kill()
    adding = asyncio.ensure_future(store.intake.add("q", NewTask("a", b"")))
    await pause(0.3, proves="it does not fail while the server is away")
    assert not adding.done()
    await asyncio.to_thread(server.start)
    assert await adding == CREATED
    await store.close()


async def test_a_refusal_is_not_tried_again(store: Store, redis_client: Any) -> None:
    await redis_client.set(keys.pending("q"), "x")
    before = await script_calls(redis_client)
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await store.intake.add("q", NewTask("a", b""))
    assert await script_calls(redis_client) - before <= 2


async def test_an_id_of_the_users_own_is_no_conflict_with_its_own_first_try(
    server: RealServer, redis_client: Any
) -> None:
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url)
        await app.enqueue("t", b"0")
        proxy.lose_reply = 1
        assert (await app.enqueue("t", b"1", task_id="mine")).created
        proxy.lose_reply = 1
        assert (await app.enqueue("t", b"2", task_id="later", delay=60, unique_for=60)).created
        proxy.lose_reply = 1
        with pytest.raises(TaskIdConflict):
            await app.enqueue("t", b"other", task_id="mine")
        await app.close()
    assert await redis_client.llen(keys.pending("default")) == 2


async def test_a_task_alone_waits_since_the_servers_own_nanosecond(store: Store, redis_client: Any) -> None:
    """Its way through the script is short, with the time written out by hand: also in the first tenth of a second,
    when the microseconds have fewer digits."""

    async def now() -> int:
        seconds, micros = await redis_client.time()
        return int(seconds * 1_000_000 + micros) * 1000

    since = [await now()]
    while len(since) < 40 or since[-1] - since[1] < 1_100_000_000:
        assert await store.intake.add("q", NewTask(f"t{len(since)}", b"m")) == CREATED
        text = await redis_client.hget(f"asynq:{{q}}:t:t{len(since)}", "pending_since")
        assert len(text) == 19
        since.append(int(text))
        await asyncio.sleep(0.002)
    assert since == sorted(since)
    assert since[-1] <= await now()


@pytest.mark.parametrize(
    "said", [b"*1\r\n-ERR inner\r\n", b"*2\r\n:1\r\n-OOM inner\r\n", b"*0\r\n", b":7\r\n", b"$-1\r\n", b"+OK\r\n"]
)
async def test_a_reply_that_is_no_reply_of_the_script_is_no_success(said: bytes) -> None:
    """Something between the client and the server answers: the task is not there."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(said if b"EVAL" in data else b":1\r\n" if b"SADD" in data else b"+OK\r\n")
        writer.close()
        await writer.wait_closed()
        is_over.set()

    is_over = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    store = Store(connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=5.0))
    for entries in ([NewTask("a", b"")], [NewTask("a", b""), NewTask("b", b"")]):
        with pytest.raises(StoreError, match=r"inner|unexpected reply"):
            await store.intake.add_many("q", entries)
    await store.close()
    await is_over.wait()
    server.close()
