"""Sentinels as seen from the store, one thing at a time: whom it asks, what it hears, when it turns to another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import hiredis
import pytest

from tests.support.waiting import pause, until
from veredus.errors import ConnectionLost
from veredus.store.connection import sentinels as sentinels_module
from veredus.store.connection.address import parse_url
from veredus.store.connection.sentinels import CHANNEL, Sentinels
from veredus.store.store import Subscription, connect

MASTER = ("10.0.0.1", 7000)
OTHER = ("10.0.0.2", 7001)


class ScriptedSentinel:
    """Speaks as much of the protocol as the store needs."""

    def __init__(self) -> None:
        self.master: tuple[str, int] | None = MASTER
        self.error = ""
        self.mute = False
        self.unanswered: set[str] = set()
        """Commands that it leaves without an answer."""
        self.refused: set[str] = set()
        self.commands: list[list[str]] = []
        self.subscribers: list[asyncio.StreamWriter] = []
        self.connections: set[asyncio.StreamWriter] = set()
        self.opened = 0

    async def start(self) -> ScriptedSentinel:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await until(lambda: not self.connections)

    def cut(self) -> None:
        for writer in [*self.connections]:
            writer.transport.abort()

    def publish(self, text: str) -> None:
        for writer in self.subscribers:
            writer.write(_array("message", CHANNEL, text))

    def count(self, verb: str) -> int:
        return sum(command[0] == verb for command in self.commands)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        self.opened += 1
        parser = hiredis.Reader(encoding="utf-8")
        try:
            while data := await reader.read(4096):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    self.commands.append([str(word) for word in command])
                    if not self.mute and self.commands[-1][0] not in self.unanswered:
                        writer.write(self._answer(self.commands[-1], writer))
        except ConnectionError:
            pass
        finally:
            self.connections.discard(writer)
            if writer in self.subscribers:
                self.subscribers.remove(writer)
            writer.close()

    def _answer(self, command: list[str], writer: asyncio.StreamWriter) -> bytes:
        if command[0] in self.refused:
            return b"-ERR not here\r\n"
        if command[0] == "SENTINEL":
            if self.error:
                return f"-{self.error}\r\n".encode()
            return _array(self.master[0], str(self.master[1])) if self.master else b"*-1\r\n"
        if command[0] == "SUBSCRIBE":
            self.subscribers.append(writer)
            return b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
        if command[0] == "PING":
            return _array("pong", "")
        if command[0] == "ROLE":
            return _array("master", "0")
        return b"+OK\r\n"


def _array(*words: str) -> bytes:
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words)


@pytest.fixture
async def two() -> AsyncIterator[list[ScriptedSentinel]]:
    made = [await ScriptedSentinel().start() for _ in range(2)]
    yield made
    for one in made:
        await one.stop()


def _sentinels(made: list[ScriptedSentinel], switches: list[Any], query: str = "", timeout: float = 5.0) -> Sentinels:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in made)
    return Sentinels(parse_url(f"redis+sentinel://{hosts}/main{query}"), timeout, switches.append)


async def test_the_one_that_answered_last_is_asked_first(two: list[ScriptedSentinel]) -> None:
    first, second = two
    first.master = None
    sentinels = _sentinels(two, [])
    assert await sentinels.find_master() == MASTER
    assert ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"] in second.commands
    assert (first.count("SENTINEL"), second.count("SENTINEL")) == (1, 1)
    assert await sentinels.find_master() == MASTER
    assert (first.count("SENTINEL"), second.count("SENTINEL")) == (1, 2)
    second.error, first.master = "ERR busy", OTHER
    assert await sentinels.find_master() == OTHER
    assert (first.count("SENTINEL"), second.count("SENTINEL")) == (2, 3)
    assert await sentinels.find_master() == OTHER
    assert (first.count("SENTINEL"), second.count("SENTINEL")) == (3, 3)
    await until(lambda: not first.connections and not second.connections, what="the end of every connection")


async def test_if_none_names_a_master_the_error_says_why_for_each(two: list[ScriptedSentinel]) -> None:
    gone, second = two
    await gone.stop()
    second.error = "ERR busy"
    sentinels = _sentinels([gone, second], [])
    with pytest.raises(ConnectionLost) as failed:
        await sentinels.find_master()
    assert f"127.0.0.1:{gone.port}" in str(failed.value)
    assert f"127.0.0.1:{second.port}: ERR busy" in str(failed.value)
    second.error, second.master = "", None
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{second.port} knows no master 'main'"):
        await sentinels.find_master()


async def test_it_introduces_itself_with_the_sentinels_own_password(two: list[ScriptedSentinel]) -> None:
    await _sentinels(two, [], "?sentinel_username=me&sentinel_password=secret").find_master()
    assert two[0].commands[0] == ["AUTH", "me", "secret"]


async def test_a_switch_of_its_own_master_is_told_and_no_other(two: list[ScriptedSentinel]) -> None:
    switches: list[Any] = []
    sentinels = _sentinels(two, switches)
    sentinels.listen()
    await until(lambda: switches == [MASTER], what="the master as it is when it begins to listen")
    for text in (
        "other 10.0.0.1 7000 10.0.0.9 7009",
        "main 10.0.0.1 7000 10.0.0.9",
        "main 10.0.0.1 7000 10.0.0.9 7009 more",
        "main 10.0.0.1 7000 10.0.0.2 7001",
    ):
        two[0].publish(text)
    await until(lambda: len(switches) > 1)
    assert switches == [MASTER, OTHER]
    sentinels.close()
    await until(lambda: not two[0].connections, what="the end of the subscription")


async def test_it_listens_to_one_at_a_time_however_often_it_is_told_to(two: list[ScriptedSentinel]) -> None:
    switches: list[Any] = []
    sentinels = _sentinels(two, switches)
    for _ in range(3):
        sentinels.listen()
    await until(lambda: len(switches) == 1)
    sentinels.listen()
    assert (two[0].count("SUBSCRIBE"), two[1].count("SUBSCRIBE")) == (1, 0)
    sentinels.close()
    sentinels.listen()
    await until(lambda: len(switches) == 2, what="it listens again")
    sentinels.close()
    sentinels.close()


async def test_when_one_is_gone_it_listens_to_another(
    two: list[ScriptedSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinels_module, "PAUSE", 0.01)
    monkeypatch.setattr(sentinels_module, "CHECK", 600.0)
    switches: list[Any] = []
    sentinels = _sentinels(two, switches)
    sentinels.listen()
    await until(lambda: two[0].subscribers)
    await two[0].stop()
    await until(lambda: two[1].subscribers, what="a subscription to the second")
    two[1].publish("main 10.0.0.1 7000 10.0.0.2 7001")
    await until(lambda: OTHER in switches)
    two[1].cut()
    await until(lambda: two[1].count("SUBSCRIBE") >= 2, what="a new subscription to the only one left")
    sentinels.close()


async def test_one_that_refuses_to_be_listened_to_is_left_for_another(two: list[ScriptedSentinel]) -> None:
    two[0].refused = {"SUBSCRIBE"}
    sentinels = _sentinels(two, [])
    sentinels.listen()
    await until(lambda: two[1].subscribers, what="a subscription to the second")
    sentinels.close()


async def test_one_that_says_nothing_is_asked_whether_it_lives(
    two: list[ScriptedSentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinels_module, "CHECK", 0.02)
    sentinels = _sentinels(two, [], timeout=0.2)
    sentinels.listen()
    await until(lambda: two[0].count("PING") >= 2, what="two pings")
    assert two[0].count("SUBSCRIBE") == 1, "an answer is enough to stay"
    two[0].mute = True
    await until(lambda: two[1].subscribers, what="a subscription to one that answers")
    sentinels.close()


async def test_when_all_are_gone_it_waits_before_it_tries_again(
    two: list[ScriptedSentinel], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sentinels_module, "PAUSE", 600.0)
    caplog.set_level(logging.DEBUG, "veredus.store")
    for one in two:
        await one.stop()
    sentinels = _sentinels(two, [])
    sentinels.listen()
    await until(lambda: len(caplog.records) == 2, what="one try of each")
    await pause(0.05, proves="there is no third")
    assert [f":{one.port}:" in record.getMessage() for one, record in zip(two, caplog.records, strict=True)] == [
        True
    ] * 2
    sentinels.close()


def _behind(asked: ScriptedSentinel, master: ScriptedSentinel) -> Any:
    asked.master = ("127.0.0.1", master.port)
    return connect(f"redis+sentinel://127.0.0.1:{asked.port}/main", timeout=600.0)


async def test_a_close_while_the_master_is_asked_for_its_role_ends_that_connection(two: list[ScriptedSentinel]) -> None:
    """Who waits for it is told so, and is not cancelled."""
    asked, master = two
    master.unanswered = {"ROLE"}
    redis = _behind(asked, master)
    calling = asyncio.create_task(redis.command("PING", key=""))
    await until(lambda: master.count("ROLE") == 1)
    await redis.close()
    await until(lambda: not master.connections, what="the end of the connection")
    with pytest.raises(ConnectionLost, match="closed while it was connecting"):
        await calling


async def test_who_is_cancelled_while_a_connection_is_made_is_cancelled(two: list[ScriptedSentinel]) -> None:
    asked, master = two
    master.unanswered = {"ROLE"}
    redis = _behind(asked, master)
    calling = asyncio.create_task(redis.command("PING", key=""))
    await until(lambda: master.count("ROLE") == 1)
    redis._connecting.cancel()  # both at once
    calling.cancel()
    await redis.close()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_connection_that_opens_after_the_close_leaves_nobody_listening(two: list[ScriptedSentinel]) -> None:
    asked, master = two
    master.unanswered = {"ROLE"}
    redis = _behind(asked, master)
    opening = asyncio.create_task(redis.open(""))
    await until(lambda: master.count("ROLE") == 1)
    await redis.close()
    for writer in master.connections:
        writer.write(_array("master", "0"))
    connection = await opening
    await pause(0.05, proves="no subscription that nobody would end")
    assert asked.count("SUBSCRIBE") == 0
    connection.close()
    await until(lambda: not master.connections and not asked.connections)


async def test_a_subscription_that_is_called_off_ends_its_connection(two: list[ScriptedSentinel]) -> None:
    asked, master = two
    master.unanswered = {"SUBSCRIBE"}
    redis = _behind(asked, master)
    opening = asyncio.create_task(Subscription(redis, ["channel"], lambda channel, data: None).open(lambda: None))
    await until(lambda: master.count("SUBSCRIBE") == 1)
    opening.cancel()
    await until(lambda: not master.connections, what="the end of the connection")
    await redis.close()


async def test_a_word_about_the_master_that_is_known_leaves_its_connections_alone(two: list[ScriptedSentinel]) -> None:
    asked, master = two
    redis = _behind(asked, master)
    await redis.command("PING", key="")
    await until(lambda: asked.subscribers and asked.count("SENTINEL") == 2)
    asked.publish(f"main 10.0.0.1 7000 127.0.0.1 {master.port}")
    await pause(0.05, proves="nobody turns away from the master")
    await redis.command("PING", key="")
    assert master.opened == 1
    await redis.close()
