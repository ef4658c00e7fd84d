"""The promises of a peer, each broken on purpose by a scripted gateway."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.peer.conftest import QUICK
from tests.peer.scripted import ScriptedGateway
from tests.support.waiting import PATIENCE, forever, pause, until
from veredus.errors import ConfigError
from veredus.model.delivery import SyncHint
from veredus.model.frames import Cancel, ErrorCode, Gap, GoAway, Join, Kind, Message, Ping, Volatile
from veredus.peer import (
    Connected,
    Disconnected,
    Discontinuity,
    Item,
    Peer,
    RequestFailed,
    RequestLost,
    RequestRejected,
    RequestTimeout,
    Retrying,
    SavedSession,
    SessionClosed,
    Unreachable,
    connect,
)
from veredus.peer import Gap as GapItem
from veredus.peer import Message as MessageItem


async def take(peer: Peer, count: int) -> list[Any]:
    return [await peer.receive(PATIENCE) for _ in range(count)]


async def test_requests_are_answered_and_failures_have_codes(either: ScriptedGateway) -> None:
    def busy(body: object) -> object:
        raise ValueError("no paper")

    either.actions |= {"busy": busy, "reverse": lambda body: body[::-1]}
    async with connect(either.url, token="ada", **QUICK) as peer:
        assert either.hellos[0].token == "ada"
        assert await peer.request("echo", {"a": [1, "ü", None]}) == {"a": [1, "ü", None]}
        assert await peer.request("reverse", b"\x00\x01\xff") == b"\xff\x01\x00"
        with pytest.raises(RequestFailed, match="no paper") as failed:
            await peer.request("busy")
        assert (failed.value.code, failed.value.retryable) == (503, True)
        with pytest.raises(RequestRejected, match="no action nope") as rejected:
            await peer.request("nope")
        assert (rejected.value.code, rejected.value.retryable) == (404, False)
    await until(lambda: not either.sessions)


async def test_every_field_arrives_and_asking_for_the_next_acknowledges(either: ScriptedGateway) -> None:
    async with connect(either.url, **QUICK) as peer:
        either.push(
            {"n": 1}, kind=Kind.GROUP, type="mail", title="T", content="C", metadata={"k": "v"}, group="g",
            sync_hint=2, bind_client_seq_id=123, create_time=99,
        )  # fmt: skip
        for n in range(2, 41):
            either.push(n)
        first = await peer.receive(PATIENCE)
        assert isinstance(first, MessageItem)
        assert first.as_dict() == {
            "seq": 1, "ts": 1000, "kind": "group", "type": "mail", "title": "T", "content": "C", "metadata": {"k": "v"},
            "group": "g", "sync_hint": 2, "bind_client_seq_id": 123, "create_time": 99, "data": {"n": 1},
        }  # fmt: skip
        assert first.sync_hint is SyncHint.AFTER_RESPONSE
        assert peer.cursor.seq == 0
        assert [item.data for item in await take(peer, 39)] == list(range(2, 41))
        assert peer.cursor.seq == 39
        await until(lambda: either.session.acked == 39)
        peer.handled()
        await until(lambda: either.session.acked == 40)


async def test_cut_and_resumed_with_the_rotated_secret_nothing_missing_nothing_twice(either: ScriptedGateway) -> None:
    seen: list[int] = []

    def note(item: Item) -> None:
        assert isinstance(item, MessageItem)
        seen.append(item.seq)

    async with connect(either.url, on_message=note, **QUICK) as peer:
        for number in range(4):
            secret = either.session.secrets[0]
            await until(lambda secret=secret: peer.export().secret == secret)
            for _ in range(10):
                either.push()
            if number % 2:
                peer.cut()
            else:
                either.cut_all()
            either.push("while away")
            await until(lambda number=number: len(either.hellos) == number + 2)
            resume = either.hellos[-1].resume
            assert resume is not None
            assert resume.secret == secret
            await until(lambda number=number: len(seen) == 11 * (number + 1))
        assert seen == list(range(1, 45))
        assert peer.stats()["resumes"] == 4


async def test_copies_are_dropped(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        gateway.push("a")
        gateway.push("b")
        await until(lambda: peer.stats()["received"] == 2)
        gateway.session.wire.send(*gateway.session.log.values())  # type: ignore[union-attr]
        peer.cut()  # the cursor is still at 0: both are replayed
        await until(lambda: peer.stats()["resumes"] == 1)
        gateway.push("c")
        assert [item.data for item in await take(peer, 3)] == ["a", "b", "c"]
        assert peer.stats()["duplicates"] >= 2


async def test_a_hole_is_never_handed_out(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        gateway.push(1)
        gateway.session.mute = True
        gateway.push(2)
        gateway.session.mute = False
        gateway.push(3)
        assert [item.seq for item in await take(peer, 3)] == [1, 2, 3]
        assert peer.stats()["connections"] == 2


async def test_a_request_is_sent_again_run_once_and_answered_once(either: ScriptedGateway) -> None:
    async def slow(body: object) -> object:
        peer.cut()
        await until(lambda: sum(request.action == "slow" for request in either.requests) == 2 or settled())
        return body

    def settled() -> bool:  # told by the welcome that it is open, a peer need not send it again
        return len(either.hellos) >= 3

    either.actions["slow"] = slow
    async with connect(either.url, **QUICK) as peer:
        either.deaf = True
        pending = [peer.submit("echo", 1), peer.submit("echo", 2)]
        await until(lambda: len(either.requests) == 2)
        either.deaf = False
        peer.cut()
        assert [await one for one in pending] == [1, 2]
        assert await peer.request("slow", 3) == 3
        assert either.ran == [1, 2, 3]
        await until(lambda: either.session.rid_floor == 3)


async def test_who_only_asks_is_not_stopped_by_the_window(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for n in range(300):
            assert await peer.request("echo", n) == n
        await until(lambda: gateway.session.acked == 300)


async def test_nobody_reads_is_warned_of(gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(gateway.url, **QUICK, window_messages=8) as peer:
        with caplog.at_level(logging.WARNING, "veredus.peer"):
            for n in range(8):
                gateway.push(n)
            await until(lambda: peer.stats()["waiting"] == 8)
        assert "nothing reads them" in caplog.text


async def test_a_lost_session_is_a_discontinuity_and_its_requests_are_lost(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        await peer.join("room")
        with pytest.raises(RequestRejected, match="secret"):
            await peer.join("secret")
        await peer.leave("room")
        await peer.join("room")
        gateway.push("old")
        await until(lambda: peer.stats()["received"] == 1)
        gateway.deaf = True
        lost = peer.submit("echo", 1)
        await until(lambda: len(gateway.requests) == 1)
        gateway.deaf = False
        gateway.sessions.clear()
        gateway.cut_all()
        with pytest.raises(RequestLost):
            await lost
        assert await peer.request("echo", 2) == 2
        gateway.push("new")
        items = await take(peer, 4)
        assert items[1] == Discontinuity("unknown")
        assert [item.data for item in (items[0], *items[2:])] == ["old", 2, "new"]
        joins = [frame.group for frame in gateway.frames if isinstance(frame, Join)]
        assert joins == ["room", "secret", "room", "room"]


async def test_a_reset_goes_on_in_the_new_epoch(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for n in range(3):
            gateway.push(n)
        await until(lambda: peer.stats()["received"] == 3)
        gateway.reset = "fork"
        gateway.cut_all()
        await until(lambda: peer.stats()["resets"] == 1)
        gateway.cut_all()  # before the application saw anything of it
        await until(lambda: peer.stats()["resumes"] == 1)
        resume = gateway.hellos[-1].resume
        assert resume is not None
        assert resume.cursor.epoch == gateway.session.epoch
        gateway.push("after")
        items = await take(peer, 8)
        assert items[3] == Discontinuity("fork")
        assert [item.seq for item in items if isinstance(item, MessageItem)] == [1, 2, 3, 1, 2, 3, 4]


async def test_a_fork_behind_what_came_since_the_welcome_takes_back_no_more_than_it_replaces(
    gateway: ScriptedGateway,
) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for n in (1, 2):
            gateway.push(f"old {n}")
        await until(lambda: peer.stats()["received"] == 2)
        gateway.session.wire.send(Message(seq=2, ts=7777, body=b'"new 2"'))  # type: ignore[union-attr]
        await until(lambda: peer.stats()["received"] == 3)
        items = [await peer.receive(PATIENCE) for _ in range(3)]
        said = [item.data if isinstance(item, MessageItem) else item for item in items]
        assert said == ["old 1", Discontinuity("fork"), "new 2"]


async def test_the_same_number_with_another_time_is_a_fork_not_a_copy(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for n in (1, 2, 3):
            gateway.push(f"old {n}")
        await until(lambda: peer.stats()["received"] == 3)
        session = gateway.session
        session.top, session.mute = 1, True
        del session.log[3]
        gateway.push("new 2", ts=7777)
        session.mute = False
        gateway.cut_all()
        await until(lambda: peer.stats()["resumes"] == 1)
        gateway.push("new 3", ts=8888)
        items: list[Any] = []
        while not items or getattr(items[-1], "data", None) != "new 3":
            items.append(await peer.receive(PATIENCE))
        said = [item.data if isinstance(item, MessageItem) else item for item in items]
        assert said == ["old 1", Discontinuity("fork"), "new 2", "new 3"]


async def test_a_log_shorter_than_what_we_have_of_it_is_a_fork_too(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for n in (1, 2, 3):
            gateway.push(f"old {n}")
        assert (await peer.receive(PATIENCE)).seq == 1  # type: ignore[union-attr]
        await until(lambda: peer.stats()["received"] == 3)
        gateway.session.top = 1
        del gateway.session.log[2], gateway.session.log[3]
        gateway.cut_all()
        await until(lambda: peer.stats()["resumes"] == 1)
        assert await peer.receive(PATIENCE) == Discontinuity("fork")
        gateway.push("new 2", ts=7777)
        assert (await peer.receive(PATIENCE)).data == "new 2"  # type: ignore[union-attr]
        peer.handled()
        assert peer.cursor.seq == 2


async def test_a_fork_takes_back_what_is_in_hand(gateway: ScriptedGateway) -> None:
    """The replaced message comes back with the server that had it: it was not handled, so it is not acknowledged."""
    async with connect(gateway.url, **QUICK) as peer:
        for n in (1, 2):
            gateway.push(n)
        assert [item.data for item in await take(peer, 2)] == [1, 2]
        session = gateway.session
        two, session.top = session.log.pop(2), 1
        gateway.cut_all()
        await until(lambda: peer.stats()["resumes"] == 1)
        session.log[2], session.top = two, 2
        session.wire.send(two)  # type: ignore[union-attr]
        await until(lambda: peer.stats()["received"] == 3)
        assert await peer.receive(PATIENCE) == Discontinuity("fork")
        assert peer.cursor.seq == 1, "2 was in hand when the log was forked, and is to be handed out again"
        assert (await peer.receive(PATIENCE)).data == 2  # type: ignore[union-attr]
        peer.handled()
        assert peer.cursor.seq == 2


async def test_a_gap_stands_in_its_place(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        gateway.push(1)
        gateway.session.wire.send(Gap(2, 5, "drop_oldest", 5000))  # type: ignore[union-attr]
        gateway.session.top = 5
        gateway.push(6)
        one, gap, six = await take(peer, 3)
        assert isinstance(gap, GapItem)
        assert (one.data, gap[:3], six.data) == (1, (2, 5, "drop_oldest"), 6)
        peer.handled()
        assert peer.cursor.seq == 6


async def test_a_wrong_token_is_not_tried_again(either: ScriptedGateway) -> None:
    either.refusals = [(4501, 0)]
    with pytest.raises(SessionClosed, match="4501") as closed:
        await connect(either.url, **QUICK)
    assert closed.value.code == 4501
    await pause(0.1, proves="it is not tried again, which would come after 0.05 s at most")
    assert len(either.hellos) == 1


async def test_a_hello_attached_too_late_supersedes_its_own_peer_which_comes_back(either: ScriptedGateway) -> None:
    async with connect(either.url, backoff_base=0.01, backoff_max=0.05, connect_timeout=1.0) as peer:
        either.silent = True
        peer.cut()
        await until(lambda: len(either.hellos) == 2)  # resumes, and gives up on this hello: no welcome comes
        either.silent = False
        await until(lambda: peer.stats()["resumes"] == 1)
        either.session.wire.refuse(4503)  # type: ignore[union-attr]  # the slow gateway has attached that hello now
        await until(lambda: peer.stats()["resumes"] == 2)
        assert await peer.request("echo", 1) == 1
        either.session.wire.refuse(4503)  # type: ignore[union-attr]  # this time it must have been somebody else
        with pytest.raises(SessionClosed) as closed:
            await peer.receive(PATIENCE)
        assert closed.value.code == 4503


async def test_a_peer_told_to_come_again_has_not_been_without_a_gateway(gateway: ScriptedGateway) -> None:
    events: list[object] = []
    async with connect(gateway.url, on_event=events.append, give_up_after=0.3, **QUICK) as peer:
        await pause(0.35, proves="time with a connection does not count as time without one")
        gateway.session.wire.refuse(4005)  # type: ignore[union-attr]
        await until(lambda: peer.stats()["resumes"] == 1)
        assert [event.code for event in events if isinstance(event, Disconnected)] == [4005]


async def test_superseded_while_iterating_raises(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        gateway.push(1)
        seen = []

        async def iterate() -> None:
            async for item in peer:
                seen.append(item.data)  # type: ignore[union-attr]
                gateway.session.wire.refuse(4503)  # type: ignore[union-attr]

        with pytest.raises(SessionClosed) as closed:
            await iterate()
        assert (seen, closed.value.code) == ([1], 4503)
        with pytest.raises(SessionClosed):
            await peer.request("echo")


async def test_retry_after_is_waited_and_several_refusals_are_survived(gateway: ScriptedGateway) -> None:
    gateway.refusals = [(4008, 0), (4005, 150), (4003, 0)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with connect(gateway.url, **QUICK):
        assert loop.time() - began >= 0.149
        assert len(gateway.hellos) == 4


async def test_an_expired_token_is_fetched_anew_and_a_fixed_one_ends_it(gateway: ScriptedGateway) -> None:
    count = 0

    async def token() -> str:
        nonlocal count
        count += 1
        return f"t{count}"

    async with connect(gateway.url, token=token, **QUICK) as peer:
        gateway.session.wire.refuse(4004)  # type: ignore[union-attr]
        await until(lambda: peer.stats()["resumes"] == 1)
        assert [hello.token for hello in gateway.hellos] == ["t1", "t2"]
        gateway.session.wire.send(Ping(1, token_expires_ms=60_000))  # type: ignore[union-attr]
        await until(lambda: any(getattr(frame, "token", "") == "t3" for frame in gateway.frames))
    async with connect(gateway.url, token="fixed", **QUICK) as peer:
        gateway.session.wire.refuse(4004)  # type: ignore[union-attr]
        with pytest.raises(SessionClosed, match="expired"):
            await peer.receive(PATIENCE)


async def test_another_gateway_takes_over_also_over_another_transport(gateway: ScriptedGateway) -> None:
    other = await ScriptedGateway("quic").start()
    other.sessions = gateway.sessions  # as in Redis
    try:
        async with connect([gateway.url, other.url], **QUICK) as peer:
            gateway.push(1)
            await gateway.listener.close()
            gateway.cut_all()
            other.push(2)
            assert [item.data for item in await take(peer, 2)] == [1, 2]
            assert len(other.hellos) == 1
    finally:
        await other.stop()


async def test_goaway_moves_by_itself_to_where_it_hints(gateway: ScriptedGateway) -> None:
    other = await ScriptedGateway().start()
    other.sessions = gateway.sessions
    events: list[Any] = []
    try:
        async with connect(gateway.url, on_event=events.append, **QUICK) as peer:
            gateway.session.wire.send(GoAway(30, "drain", other.url))  # type: ignore[union-attr]
            await until(lambda: peer.stats()["resumes"] == 1)
            assert len(other.hellos) == 1
            assert [event.result for event in events if isinstance(event, Connected)] == ["new", "resumed"]
            await other.listener.close()
            other.cut_all()  # a hint is followed once: then it is the turn of the addresses given
            await until(lambda: peer.stats()["resumes"] == 2)
            assert len(gateway.hellos) == 2
    finally:
        await other.stop()


async def test_a_connection_that_lived_owes_nothing_to_earlier_failures(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veredus.peer.reconnector.random.random", lambda: 1.0)
    events: list[Any] = []
    async with connect(gateway.url, on_event=events.append, **QUICK) as peer:
        for steady, delays in ((600.0, [0.01, 0.02, 0.04]), (0.0, [0.01, 0.01])):
            monkeypatch.setattr("veredus.peer.reconnector.STEADY", steady)
            events.clear()
            for _ in delays:
                resumes = peer.stats()["resumes"]
                peer.cut()
                await until(lambda resumes=resumes: peer.stats()["resumes"] > resumes)
            assert [event.delay for event in events if isinstance(event, Retrying)] == delays


async def test_a_gateway_that_never_welcomes_is_left(gateway: ScriptedGateway) -> None:
    gateway.silent = True
    with pytest.raises(Unreachable, match=r"no welcome from ws://.* in 0\.2 s"):
        await connect(gateway.url, connect_timeout=0.2, **QUICK)
    await until(lambda: not gateway.wires)


async def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"no welcome from ws://127\.0\.0\.1:1 in 1 s: .*(?i:connect)"):
        await connect("ws://127.0.0.1:1", connect_timeout=1.0, **QUICK)


async def test_giving_up_after_a_while_without_any_gateway(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, give_up_after=0.2, **QUICK) as peer:
        await gateway.stop()
        with pytest.raises(SessionClosed, match=r"no gateway for 0\.2 s"):
            await peer.receive(PATIENCE)


async def test_cancelled_and_timed_out_requests(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, grace=0.05, connect_timeout=2.0, **QUICK) as peer:
        gateway.deaf = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.request("echo", 1, deadline=5, serial=True)
        await until(lambda: gateway.requests)
        request = gateway.requests[0]
        assert (request.serial, request.deadline_ms) == (True, 5000)
        await until(lambda: Cancel(1) in gateway.frames)
        with pytest.raises(RequestTimeout, match=r"echo: no answer in 0\.05 s"):
            await peer.request("echo", 2, deadline=0.05)
        gateway.silent = True
        gateway.cut_all()
        await until(lambda: not peer.connected)
        third = peer.submit("echo", 3)
        third.cancel()
        gateway.silent = False
        await until(lambda: Cancel(3) in gateway.frames)
        gateway.deaf = False
        four = peer.submit("echo", 4)
        await four.accepted()
        assert await peer.request("echo", no_reply=True) is None
        assert await four == 4


async def test_the_gateways_word_about_a_request_can_be_awaited_alone(gateway: ScriptedGateway) -> None:
    gateway.actions["hang"] = lambda body: forever()
    async with connect(gateway.url, **QUICK) as peer:
        accepted = peer.submit("echo", 1)
        await accepted.accepted()
        assert await accepted == 1
        unanswered = peer.submit("hang")
        await unanswered.accepted()
        assert not unanswered.done, "its answer is not waited for"
        refused = peer.submit("nope")
        with pytest.raises(RequestRejected, match="no action nope"):
            await refused.accepted()
        assert await peer.request("hang", no_reply=True) is None
        assert gateway.requests[-1].no_reply
        assert peer.stats()["open_requests"] == 1


async def test_a_group_is_asked_for_again_until_it_is_answered(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is volatile: it may be dropped on its way."""
    monkeypatch.setattr("veredus.peer.groups.ASK_INTERVAL", 0.02)
    async with connect(gateway.url, **QUICK) as peer:
        wire = gateway.session.wire
        assert wire is not None
        monkeypatch.setattr(wire, "send", lambda *frames: None)
        joining = peer.join("room")
        await until(lambda: any(isinstance(frame, Join) for frame in gateway.frames))
        monkeypatch.undo()
        await asyncio.wait_for(joining, PATIENCE)


async def test_only_the_answer_to_the_last_wish_about_a_group_counts(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        wire = gateway.session.wire
        assert wire is not None
        answer = wire.send
        monkeypatch.setattr(wire, "send", lambda *frames: None)
        peer.join("room")
        left = peer.leave("room")
        events: list[Any] = []
        monkeypatch.setattr(peer, "_on_event", events.append)
        for joined in (True, False):
            assert not left.done()
            answer(Volatile("veredus.group", json.dumps({"group": "room", "joined": joined, "code": 0}).encode()))
            await until(lambda joined=joined: len(events) == 2 - joined)
        await left


async def test_a_refused_group_says_why_if_the_gateway_does(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway may leave the text out, or send a code that this peer does not know."""
    async with connect(gateway.url, **QUICK) as peer:
        wire = gateway.session.wire
        assert wire is not None
        answer = wire.send
        monkeypatch.setattr(wire, "send", lambda *frames: None)
        for code in (ErrorCode.FORBIDDEN, 999):
            joining = peer.join("room")
            answer(Volatile("veredus.group", json.dumps({"group": "room", "joined": False, "code": code}).encode()))
            with pytest.raises(RequestRejected) as refused:
                await asyncio.wait_for(joining, PATIENCE)
            assert str(refused.value) == f"group room: refused (code {int(code)})"
            assert (refused.value.code, refused.value.retryable) == (code, False)
        joining = peer.join("room")
        answer(Volatile("veredus.group", b'{"group": "room", "code": 403, "error": "not you"}'))
        with pytest.raises(RequestRejected, match="group room: not you"):
            await asyncio.wait_for(joining, PATIENCE)


async def test_the_end_fails_requests_without_an_answer(gateway: ScriptedGateway) -> None:
    gateway.deaf = True
    async with connect(gateway.url, **QUICK) as peer:
        pending = peer.submit("echo", 1)
        await until(lambda: gateway.requests)
        gateway.session.wire.refuse(4504)  # type: ignore[union-attr]
        with pytest.raises(RequestLost, match="4504"):
            await asyncio.wait_for(pending, PATIENCE)


async def test_the_end_fails_whoever_waits_to_join_a_group(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        monkeypatch.setattr(gateway.session.wire, "send", lambda *frames: None)
        joining = peer.join("room")
        await peer.close()
        with pytest.raises(RequestLost):
            await asyncio.wait_for(joining, PATIENCE)


async def test_a_session_goes_on_in_another_process(gateway: ScriptedGateway) -> None:
    peer = await connect(gateway.url, **QUICK)
    assert await peer.request("echo", 0) == 0
    for n in (1, 2):
        gateway.push(n)
    assert (await peer.receive(PATIENCE)).data == 1  # type: ignore[union-attr]
    peer.handled()
    assert (await peer.receive(PATIENCE)).data == 2  # type: ignore[union-attr]
    await peer.detach()
    saved = peer.export().to_json()
    gateway.push(3)
    async with connect(gateway.url, resume=saved, **QUICK) as other:
        assert other.session == peer.session
        assert [item.data for item in await take(other, 2)] == [2, 3]
        assert await other.request("echo", 4) == 4
        assert gateway.ran == [1, 2]
    assert SavedSession.from_json(saved).cursor.seq == 2
    with pytest.raises(ConfigError, match="to_json"):
        connect(gateway.url, resume="{}")


async def test_a_slow_reader_gets_everything_and_holds_little(gateway: ScriptedGateway) -> None:
    """The scripted gateway ignores windows; a real one is tested in tests/gateway. Here: nothing is acked early."""
    async with connect(gateway.url, **QUICK) as peer:
        for n in range(200):
            gateway.push(n)
        await until(lambda: peer.stats()["waiting"] == 200)
        await pause(0.15, proves="nothing is acknowledged before it is handled")
        assert gateway.session.acked == 0
        assert [item.data for item in await take(peer, 100)] == list(range(100))
        await until(lambda: gateway.session.acked == 99)
        many = await peer.receive_many()
        assert [item.data for item in many] == list(range(100, 200))  # type: ignore[union-attr]
        await until(lambda: gateway.session.acked == 100)


async def test_what_was_received_together_is_acknowledged_together(gateway: ScriptedGateway) -> None:
    """By the next call, up to the last of them; a discontinuity at the end has no number to acknowledge."""
    async with connect(gateway.url, **QUICK) as peer:
        for n in (1, 2, 3):
            gateway.push(n)
        await until(lambda: peer.stats()["waiting"] == 3)
        assert len(await peer.receive_many(2)) == 2
        assert peer.cursor.seq == 0
        gateway.session.top = 2
        del gateway.session.log[3]
        gateway.cut_all()  # 3 is gone: it gives way to the news of that
        await until(lambda: peer.stats()["resets"] == 1)
        gateway.push("new 3", ts=7777)
        await until(lambda: peer.stats()["waiting"] == 2)
        items = await peer.receive_many()
        assert (peer.cursor.seq, items[0]) == (2, Discontinuity("fork"))
        assert items[1].data == "new 3"  # type: ignore[union-attr]
        peer.handled()
        await until(lambda: gateway.session.acked == 3)


async def test_an_asynchronous_callback_is_awaited_and_its_failure_reported(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def on_message(item: Any) -> None:
        await asyncio.sleep(0.002)
        seen.append(item.seq)
        if item.seq == 2:
            raise RuntimeError("two")

    async with connect(gateway.url, on_message=on_message, **QUICK) as peer:
        for n in range(5):
            gateway.push(n)
        await until(lambda: gateway.session.acked == 5)
        assert seen == [1, 2, 3, 4, 5]
        assert "on_message failed" in caplog.text
        for read in (peer.receive, peer.receive_many):
            with pytest.raises(ConfigError, match="on_message"):
                await asyncio.wait_for(read(), PATIENCE)
        with pytest.raises(ConfigError, match="on_message"):
            aiter(peer)


async def test_the_end_is_told_to_whoever_listens_and_waits(gateway: ScriptedGateway) -> None:
    events: list[Any] = []
    peer = await connect(gateway.url, on_message=lambda item: None, on_event=events.append, **QUICK)
    gateway.session.wire.refuse(4504)  # type: ignore[union-attr]
    with pytest.raises(SessionClosed, match="4504"):
        await peer.wait_closed()
    assert events[-1].error.code == 4504
    await peer.close()
    with pytest.raises(SessionClosed, match="not connected yet"):
        connect(gateway.url).cut()


async def test_garbage_from_a_gateway_ends_it_clearly(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        gateway.session.wire.transport.send([b"\xff\xff\xff\xff\xff\xff"])  # type: ignore[union-attr]
        with pytest.raises(SessionClosed, match="4500"):
            await peer.receive(PATIENCE)


async def test_two_readers_are_refused(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        first = asyncio.create_task(peer.receive(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="one reader"):
            await peer.receive(1)
        gateway.push(1)
        assert (await first).data == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"url": "http://x"}, "ws://"),
        ({"url": []}, "at least one"),
        ({"url": "ws://h:99999"}, "ws://"),
        ({"backof_base": 1}, "did you mean 'backoff_base'"),
        ({"window_messages": 0}, "window_messages"),
        ({"connect_timeout": -1}, "seconds above 0"),
        ({"backoff_base": 30}, "backoff_max"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        connect(**{"url": "ws://127.0.0.1:1", **given})


def test_backoff_is_a_random_part_of_a_doubling_limit() -> None:
    from veredus.peer import PeerConfig

    config = PeerConfig()
    assert [config.backoff(n, 1.0) for n in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0]
    assert config.backoff(10_000, 0.5, retry_after=3) == 13.0
    assert config.backoff(3, 0.0) == 0.0
