"""One shared connection: replies find their callers, whatever is cancelled, killed or frozen meanwhile."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import PATIENCE, pause, pause_sync, until
from veredus.errors import AuthError, CommandRefused, ConnectionLost, NotReady
from veredus.process.supervisor import loop_factory
from veredus.store.connection.redis import Redis
from veredus.store.store import Store, connect
from veredus.store.tasks.delays import ForwardReply

NewServer = Callable[..., RealServer]


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Redis]]:
    """Connects, and closes everything at the end."""
    made: list[Redis] = []

    def open_(url: str, **options: Any) -> Redis:
        made.append(connect(url, **options))
        return made[-1]

    yield open_
    for redis in made:
        await redis.close()


async def blocked(client: Any) -> bool:
    return bool((await client.info("clients"))["blocked_clients"] == 1)


async def test_concurrent_calls_get_their_own_replies_in_order(store: Store) -> None:
    replies = await asyncio.gather(*[store.redis.command("ECHO", f"{i}", key="") for i in range(1000)])
    assert replies == [str(i).encode() for i in range(1000)]
    assert await asyncio.gather(*[store.redis.command("INCR", "n", key="n") for _ in range(500)]) == [*range(1, 501)]


async def test_an_error_reply_reaches_its_caller_alone(store: Store) -> None:
    await store.redis.command("SET", "s", "x", key="s")
    calls = [store.redis.command(*(("LLEN", "s") if i % 3 else ("GET", "s")), key="s") for i in range(30)]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    for i, reply in enumerate(replies):
        assert isinstance(reply, CommandRefused) if i % 3 else reply == b"x"


async def test_concurrent_calls_share_one_connection(url: str, redis_client: Any, opened: Any) -> None:
    redis = opened(url, name="shared")
    await asyncio.gather(*[redis.command("PING", key="") for _ in range(50)])
    assert [client["name"] for client in await redis_client.client_list()].count("shared") == 1


async def test_cancelled_callers_do_not_shift_the_replies_of_others(store: Store, redis_client: Any) -> None:
    blocking = asyncio.ensure_future(store.redis.command("BLPOP", "wait", 5, key="wait"))
    calls = [asyncio.ensure_future(store.redis.command("ECHO", f"{i}", key="")) for i in range(200)]
    await until(lambda: blocked(redis_client))
    for i in range(0, 200, 3):
        calls[i].cancel()
    blocking.cancel()
    await redis_client.rpush("wait", "now")
    for i, call in enumerate(calls):
        if i % 3:
            assert await call == str(i).encode()
    assert await store.redis.command("ECHO", "after", key="") == b"after"


async def test_a_caller_cancelled_while_connecting_does_not_take_the_connection_with_it(store: Store) -> None:
    first = asyncio.ensure_future(store.redis.command("PING", key=""))
    second = asyncio.ensure_future(store.redis.command("PING", key=""))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"PONG"


async def test_big_values_both_ways(store: Store) -> None:
    big = bytes(range(256)) * 20_000
    replies = await asyncio.gather(*[store.redis.command("ECHO", big, key="") for _ in range(3)])
    assert replies == [big] * 3


async def test_killed_in_the_middle_every_waiting_call_fails_and_the_next_reconnects(
    new_server: NewServer, opened: Any
) -> None:
    server = new_server()
    redis = opened(server.url)
    await redis.command("PING", key="")
    calls = [asyncio.ensure_future(redis.command("BLPOP", "x", 30, key="x"))]
    calls += [asyncio.ensure_future(redis.command("PING", key="")) for _ in range(10)]
    await until(lambda: asyncio.to_thread(lambda: server.client().info("clients")["blocked_clients"] == 1))
    server.kill()
    replies = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    assert all(isinstance(reply, ConnectionLost) for reply in replies)
    assert not redis._connection.alive
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await redis.command("PING", key="")
    server.start()
    assert await redis.command("PING", key="") == b"PONG"


async def test_a_server_that_stops_answering_is_given_up_after_the_timeout(new_server: NewServer, opened: Any) -> None:
    server = new_server()
    redis = opened(server.url, timeout=1)
    await redis.command("PING", key="")
    server.freeze()
    begin = time.monotonic()
    with pytest.raises(ConnectionLost, match="did not answer in time"):
        await redis.command("PING", key="")
    assert 0.9 < time.monotonic() - begin < PATIENCE
    with pytest.raises(ConnectionLost):
        await redis.command("PING", key="")
    server.thaw()
    assert await redis.command("PING", key="") == b"PONG"


async def test_a_slow_call_between_quick_ones_is_still_found(url: str, opened: Any) -> None:
    redis = opened(url, timeout=1)
    for _ in range(3):
        await redis.command("PING", key="")
        await pause(0.35, proves="a quick call leaves nothing behind that hides the slow one")
    with pytest.raises(ConnectionLost, match=r"did not answer in time|does not answer on this connection"):
        await redis.command("BLPOP", "never", 30, key="never")


async def test_a_call_that_may_block_has_a_time_of_its_own(url: str, opened: Any) -> None:
    connection = await opened(url, timeout=0.5).open("k")
    assert await connection.call("BLPOP", "k", 0.8, timeout=PATIENCE) is None
    connection.close()


async def test_nobody_listens(opened: Any) -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to /nowhere/x\.sock"):
        await opened("unix:///nowhere/x.sock").command("PING", key="")
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1:"):
        await opened("redis://127.0.0.1:1").command("PING", key="")


async def test_something_that_is_not_redis(opened: Any) -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    http = await asyncio.start_server(speak_http, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLost, match="something that is not Redis"):
        await opened(f"redis://127.0.0.1:{port}", timeout=PATIENCE).command("PING", key="")
    http.close()


async def test_scripts_come_back_after_the_server_forgot_them(store: Store, redis_client: Any) -> None:
    q = Queue(store.redis, redis_client, is_watched=False)
    await q.enqueue("a")
    await redis_client.script_flush()
    await q.enqueue("b")
    assert await q.pending() == ["a", "b"]
    stats = await redis_client.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 2
    await q.enqueue("c")
    assert (await redis_client.info("commandstats"))["cmdstat_eval"]["calls"] == 2


async def test_many_first_calls_of_a_script_at_once(store: Store, redis_client: Any) -> None:
    q = Queue(store.redis, redis_client)
    await asyncio.gather(*[q.enqueue(f"t{i}") for i in range(50)])
    assert len(await q.pending()) == 50


@pytest.mark.parametrize(
    ("userinfo", "accepted"), [("", False), (":wrong@", False), (":right@", True), ("default:right@", True)]
)
async def test_passwords(new_server: NewServer, opened: Any, userinfo: str, accepted: bool) -> None:
    server = new_server("--requirepass", "right")
    redis = opened(f"unix://{userinfo}{server.socket}")
    if accepted:
        assert await redis.command("PING", key="") == b"PONG"
        return
    for _ in range(2):
        with pytest.raises(AuthError) as caught:
            await redis.command("PING", key="")
        assert "wrong" not in str(caught.value).replace("WRONGPASS", "").replace("wrong number", "")


async def test_a_connection_that_is_refused_is_closed(new_server: NewServer, opened: Any) -> None:
    server = new_server("--requirepass", "right")
    user = opened(f"unix://:right@{server.socket}")

    async def connected() -> int:
        lines: bytes = await user.command("CLIENT", "LIST", key="")
        return lines.count(b"\n")

    assert await connected() == 1
    refused = opened(f"unix://:wrong@{server.socket}")
    for _ in range(3):
        with pytest.raises(AuthError):
            await refused.command("PING", key="")

    async def is_alone() -> bool:
        return await connected() == 1

    await until(is_alone, what="no connection but the one with the right password")


async def test_a_password_where_none_is_set(server: RealServer, opened: Any) -> None:
    with pytest.raises(AuthError):
        await opened(f"unix://:needless@{server.socket}").command("PING", key="")


async def test_a_user_without_a_right(server: RealServer, redis_client: Any, opened: Any) -> None:
    await redis_client.acl_setuser("clerk", enabled=True, passwords=["+pw"], keys=["*"], commands=["+ping"], reset=True)
    redis = opened(f"unix://clerk:pw@{server.socket}")
    assert await redis.command("PING", key="") == b"PONG"
    with pytest.raises(AuthError, match="NOPERM"):
        await redis.command("SET", "a", "b", key="a")
    await redis_client.acl_deluser("clerk")


async def test_the_database_of_the_url(server: RealServer, redis_client: Any, opened: Any) -> None:
    await opened(f"{server.url}?db=3").command("SET", "a", "three", key="a")
    assert await redis_client.get("a") is None
    await redis_client.select(3)
    assert await redis_client.get("a") == b"three"
    await redis_client.select(0)
    with pytest.raises(CommandRefused):
        await opened(f"{server.url}?db=999").command("PING", key="")


async def test_a_tcp_port(new_server: NewServer, opened: Any) -> None:
    from tests.support.servers import free_port

    server = new_server(port=free_port())
    assert await opened(server.url).command("PING", key="") == b"PONG"


async def test_a_read_only_replica_is_dropped_so_that_the_next_call_looks_anew(
    new_server: NewServer, opened: Any
) -> None:
    server = new_server("--replicaof", "127.0.0.1", "1")
    redis = opened(server.url)
    q = Queue(redis, None, is_watched=False)
    for _ in range(2):
        with pytest.raises(NotReady, match="READONLY"):
            await q.enqueue("a")
    assert not redis._connection.alive
    server.client().replicaof("no", "one")
    assert await q.enqueue("a") == [1]


async def test_closing_tells_those_who_wait(url: str, redis_client: Any) -> None:
    redis = connect(url)
    call = asyncio.ensure_future(redis.command("BLPOP", "x", 30, key="x"))
    await until(lambda: blocked(redis_client))
    await redis.close()
    with pytest.raises(ConnectionLost, match="was closed"):
        await call


@VALKEY_ONLY
async def test_a_caller_that_was_cancelled_does_not_keep_the_others_from_hearing_of_a_broken_connection(
    url: str, redis_client: Any
) -> None:
    redis = connect(url)
    calls = [asyncio.ensure_future(redis.command("BLPOP", "x", 30, key="x")) for _ in range(3)]
    await until(lambda: blocked(redis_client))
    calls[0].cancel()
    await asyncio.wait([calls[0]])
    await redis_client.client_kill_filter(_type="normal", skipme=True)
    for call in calls[1:]:
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(call, PATIENCE)
    await redis.close()


@VALKEY_ONLY
async def test_each_of_several_scripts_gets_its_reply_or_its_error(store: Store, redis_client: Any) -> None:
    await redis_client.set("asynq:{bad}:pending", "x")
    await redis_client.hset("asynq:{good}:t:a", mapping={"msg": "", "state": "scheduled"})
    await redis_client.zadd("asynq:{good}:scheduled", {"a": 1})
    bad, good, empty = await store.delays.forward(["bad", "good", "empty"])
    assert isinstance(bad, CommandRefused)
    assert isinstance(good, ForwardReply)
    assert isinstance(empty, ForwardReply)
    assert (good.moved, good.wait, empty.moved) == (1, None, 0)


async def test_a_connection_over_tcp_is_kept_alive_by_the_system(
    new_server: Callable[..., RealServer], opened: Callable[..., Redis]
) -> None:
    """Else a peer that vanished without a word would never be noticed by who only waits."""
    from tests.support.servers import free_port

    redis = opened(new_server(port=free_port()).url)
    await redis.command("PING", key="")
    transport = redis._connection._transport  # type: ignore[attr-defined]
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.fixture(params=[asyncio.new_event_loop, loop_factory()], ids=["asyncio", "as workers have it"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_an_answer_that_came_while_the_loop_was_blocked_is_read_not_missed(
    valkey_server: RealServer, runner: asyncio.Runner
) -> None:
    """It is a handler that was late: "Redis is not available" would send people to the wrong place."""
    much = b"x" * 20_000_000  # more than the system takes before the loop is blocked

    async def ask() -> object:
        redis = connect(valkey_server.url, timeout=0.1)
        try:
            asked = (await redis.open("")).call("ECHO", much)
            pause_sync(0.8, proves="a blocked loop is not taken for a server that does not answer")
            return await asked
        finally:
            await redis.close()

    assert runner.run(ask()) == much


def test_a_connection_that_was_being_made_while_the_loop_was_blocked_is_made_after_all(
    new_server: NewServer, runner: asyncio.Runner
) -> None:
    server = new_server(port=free_port())

    async def ask() -> object:
        redis = connect(f"redis://127.0.0.1:{server.port}/1", timeout=0.1)
        try:
            asked = asyncio.ensure_future(redis.command("ECHO", "x", key=""))
            for _ in range(3):  # it is in the middle of it
                await asyncio.sleep(0)
            pause_sync(0.8, proves="a blocked loop is not taken for a server that cannot be reached")
            return await asked
        finally:
            await redis.close()

    assert runner.run(ask()) == b"x"
