"""Hints: heard at once, subscribed again after a break, and a deaf connection is found by probing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.outbox.support import Log, text_of
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import PATIENCE, until
from veredus.store.sessions.hints import MAX_PAUSE, MISSES, Hints
from veredus.store.store import Store, connect
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import HEADER, Hint, HintProbe, Kick, LogEntry, pack_probe, unpack_hints


class Heard:
    def __init__(self) -> None:
        self.rows: list[Hint | Kick] = []
        self.doubts = 0

    def hints(self, rows: Sequence[Hint | Kick]) -> None:
        self.rows += rows

    def doubt(self) -> None:
        self.doubts += 1


@asynccontextmanager
async def listening(store: Store, node: str = "n1", **settings: Any) -> AsyncIterator[tuple[Hints, Heard]]:
    heard = Heard()
    hints = Hints(store.redis, node, heard.hints, heard.doubt, **settings)
    task = asyncio.create_task(hints.run())
    await asyncio.wait_for(hints.subscribed(), PATIENCE)
    yield hints, heard
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_is_appended_is_heard_with_its_entries(log: Log) -> None:
    async with listening(log.store) as (hints, heard):
        sid = (await log.create()).sid
        await log.push(sid, "a", "b")
        await log.store.sessions.close(sid, "over")
        await until(lambda: len(heard.rows) == 2)
        hint = heard.rows[0]
        assert isinstance(hint, Hint)
        assert [text_of(entry.tail) for entry in hint.entries] == ["a", "b"]
        assert heard.rows[1] == Kick(sid, 1, "over")
        assert await hints.probe()
        assert hints.healthy
        assert heard.doubts == 0
    assert not hints.healthy


async def test_after_a_break_it_listens_again_and_says_that_something_may_be_missing(log: Log) -> None:
    async with listening(log.store) as (hints, heard):
        sid = (await log.create()).sid
        await log.client.client_kill_filter(_type="pubsub")
        await until(lambda: heard.doubts == 1)
        assert hints.healthy
        await log.push(sid, "a")
        await until(lambda: len(heard.rows) == 1)


@VALKEY_ONLY
async def test_a_deaf_connection_is_red_and_replaced(log: Log) -> None:
    """The worst kind of failure: connected, everything looks well, nothing arrives."""
    async with listening(log.store, probe_every=0.05) as (hints, heard):
        sid = (await log.create()).sid
        receive, hints._receive = hints._receive, lambda channel, data: None  # type: ignore[method-assign]
        hints._connections[0].on_message = hints._receive
        await until(lambda: not hints.healthy, what="red")
        hints._receive = receive  # type: ignore[method-assign]
        await until(lambda: heard.doubts >= 1)
        await until(lambda: hints.healthy, what="green")
        await log.push(sid, "a")
        await until(lambda: len(heard.rows) == 1)
        listening_now = await log.client.client_list(_type="pubsub")
        assert len(listening_now) == 1, "the deaf one is closed"


@VALKEY_ONLY
async def test_a_new_subscription_has_as_many_probes_to_lose_as_the_first(log: Log) -> None:
    subscribed: list[int] = []
    heard = Heard()
    hints = Hints(log.store.redis, "n1", heard.hints, heard.doubt, probe_every=0.05)
    subscribe = hints._subscribe

    async def noted() -> None:
        subscribed.append(hints._number)
        await subscribe()

    hints._subscribe, hints._probed = noted, lambda: ["nobody hears it"]  # type: ignore[method-assign]
    task = asyncio.create_task(hints.run())
    await until(lambda: len(subscribed) == 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert subscribed == [0, MISSES, 2 * MISSES]


@VALKEY_ONLY
async def test_a_break_is_noticed_while_a_probe_is_waited_for(log: Log) -> None:
    heard = Heard()
    hints = Hints(log.store.redis, "n1", heard.hints, heard.doubt, probe_every=600.0)
    hints._probed = lambda: ["nobody hears it"]  # type: ignore[method-assign]
    task = asyncio.create_task(hints.run())
    await until(lambda: hints._unheard)
    await log.client.client_kill_filter(_type="pubsub")
    await until(lambda: heard.doubts == 1, what="a new subscription")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_red_from_the_first_probe_that_stays_unheard(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.store.sessions.hints.MISSES", 10**6)  # it is not replaced meanwhile
    async with listening(log.store, probe_every=0.05) as (hints, heard):
        receive = hints._connections[0].on_message
        hints._connections[0].on_message = lambda channel, data: None
        await until(lambda: not hints.healthy, what="red")
        hints._connections[0].on_message = receive
        await until(lambda: hints.healthy, what="green")
        assert heard.doubts == 0


async def test_a_server_that_is_away_is_tried_until_it_is_back(new_server: Callable[..., RealServer]) -> None:
    server = new_server()
    store = Store(connect(server.url))
    async with listening(store) as (hints, heard):
        server.kill()
        await until(lambda: not hints.healthy, what="red")
        await asyncio.to_thread(server.start)
        await until(lambda: heard.doubts == 1)
        assert hints.healthy
    await store.close()


async def test_noise_on_the_channel_harms_nobody(log: Log) -> None:
    async with listening(log.store) as (_, heard):
        for noise in (b"", b"x", b"m\x05abc", b"k\x01a", b"\xff" * 40):
            await log.client.publish(keys.hints("n1"), noise)
        sid = (await log.create()).sid
        await log.push(sid, "a")
        await until(lambda: len(heard.rows) == 1)
        assert heard.doubts == 0


@given(st.binary(max_size=60))
def test_any_bytes_are_hints_or_refused(data: bytes) -> None:
    try:
        unpack_hints(data)
    except ValueError:
        pass


def test_a_probe_comes_back_as_it_was() -> None:
    assert unpack_hints(pack_probe(7)) == [HintProbe(7)]
    with pytest.raises(ValueError, match="begins with"):
        unpack_hints(b"z\x00")


def test_a_hint_that_brings_only_some_of_its_entries_brings_none() -> None:
    """Whoever gets it reads the log; half of a run must not look like all of it."""
    entry = HEADER.pack(5, 0, 9) + b"tail"
    head = b"m\x01s" + struct.pack(">QI", 3, 2)
    inline, absent = struct.pack(">I", len(entry)) + entry, struct.pack(">I", 0xFFFFFFFF)
    whole = unpack_hints(head + inline + inline)
    assert whole == [Hint("s", 3, 2, (LogEntry(3, 5, 0, b"tail"), LogEntry(4, 5, 0, b"tail")))]
    for part in (inline + absent, absent + inline, absent + absent):
        assert unpack_hints(head + part) == [Hint("s", 3, 2, ())]


async def test_pauses_between_attempts_to_listen_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    wait = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await wait(0)

    store = Store(connect(f"redis://127.0.0.1:{free_port()}"))
    monkeypatch.setattr("veredus.store.sessions.hints.asyncio.sleep", note)
    heard = Heard()
    task = asyncio.create_task(Hints(store.redis, "n1", heard.hints, heard.doubt).run())
    while len(pauses) < 12:
        await wait(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()
    for number, seconds in enumerate(pauses):
        whole = min(0.05 * 2**number, MAX_PAUSE)
        assert 0.5 * whole <= seconds <= 1.5 * whole
