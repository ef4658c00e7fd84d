"""The parts of a peer: requests, the line, the inbox and addresses, each alone or against a scripted gateway."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.peer.conftest import QUICK
from tests.peer.scripted import ScriptedGateway
from tests.support.waiting import PATIENCE, pause, until
from veredus.errors import ConfigError
from veredus.link.events import Rejected
from veredus.link.session import ClientLink
from veredus.model.frames import Auth, Close, CloseCode, ErrorCode, GoAway, Kind, Message, Ping, Request
from veredus.peer import (
    Closed,
    Connected,
    Disconnected,
    GoingAway,
    PeerConfig,
    RequestFailed,
    RequestLost,
    RequestRejected,
    RequestTimeout,
    SessionClosed,
    Unreachable,
    connect,
)
from veredus.peer.addresses import parse_address
from veredus.peer.reconnector import LATE_ATTACH, ConnectionEnd, Reconnector
from veredus.peer.requests import PeerRequests, lost


class Wire:
    """A transport that goes nowhere."""

    kind: Literal["websocket", "quic"] = "websocket"
    encoding: Literal["protobuf", "json"] = "json"
    peer = "nowhere:1"
    host = "nowhere"
    unsent = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closes: list[tuple[int, str]] = []
        self.aborted = self.closed = False

    def send(self, chunks: Sequence[bytes]) -> None:
        self.sent += chunks

    def close(self, code: int, reason: str = "") -> None:
        self.closes.append((code, reason))
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


def _link() -> ClientLink:
    return ClientLink(client="test", window_messages=10, window_bytes=1000)


def _requests() -> PeerRequests:
    return PeerRequests(_link(), lambda: None, PeerConfig(retries=0))


def _line(token: Any = "t", **settings: Any) -> Reconnector:
    addresses = [parse_address("ws://127.0.0.1:1")]
    config = PeerConfig(**settings)
    return Reconnector(
        _link(), addresses, config, token=token, verify=None, deliver=lambda e: None, announce=lambda e: None
    )


def _peer_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("veredus-peer")]


# ---- requests


@pytest.mark.parametrize("action", [5, None, b"echo", ""])
async def test_an_action_is_a_text(action: Any) -> None:
    with pytest.raises(ConfigError, match=r"action: .*a name"):
        _requests().submit(action, None, None, False, False)


@pytest.mark.parametrize("deadline", [0, -1, 1e9, float("nan")])
async def test_a_deadline_is_above_zero_and_finite(deadline: float) -> None:
    with pytest.raises(ConfigError, match=r"deadline: .*seconds above 0"):
        _requests().submit("echo", None, deadline, False, False)


async def test_a_deadline_goes_out_in_milliseconds_and_never_as_none(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, **QUICK) as peer:
        for deadline in (0.0001, 1.5, None):
            peer.submit("echo", 1, deadline=deadline)
        await until(lambda: len(gateway.requests) == 3)
        assert [request.deadline_ms for request in gateway.requests] == [1, 1500, 0]


async def test_errors_of_requests_have_a_text_a_code_and_say_whether_to_try_again() -> None:
    requests = _requests()

    def response(rid: int, code: int, error: str) -> Message:
        return Message(seq=rid, ts=1, kind=Kind.RESPONSE, rid=rid, code=code, error=error)

    for code, error, text, retryable in (
        (503, "", r"echo: failed \(code 503\)", True),
        (500, "oh", r"echo: oh \(code 500\)", False),
        (999, "", r"echo: failed \(code 999\)", False),  # of a gateway that is newer than this peer
    ):
        pending = requests.submit("echo", None, None, False, False)
        assert requests.answered(response(pending.rid, code, error))
        with pytest.raises(RequestFailed, match=text) as failed:
            await pending
        assert (failed.value.code, failed.value.retryable) == (code, retryable)
        assert not requests.answered(response(pending.rid, 0, "")), "nobody waits for it any more"

    pending = requests.submit("echo", None, None, False, False)
    requests.rejected(Rejected(pending.rid, ErrorCode.LIMIT, True, 1500, ""))
    with pytest.raises(RequestRejected, match="echo: rejected") as refused:
        await pending
    assert (refused.value.code, refused.value.retryable, refused.value.retry_after) == (429, True, 1.5)

    pending = requests.submit("echo", None, None, False, False)
    requests.rejected(Rejected(pending.rid, ErrorCode.WORKER_LOST, True, 0, ""))
    with pytest.raises(RequestLost, match="echo: its session is gone") as gone:
        await pending
    assert gone.value.retryable
    assert len(requests) == 0
    requests.rejected(Rejected(77, ErrorCode.LIMIT, True, 0, ""))  # nobody waits: nothing happens


async def test_without_an_answer_a_request_fails_at_its_deadline_and_the_grace() -> None:
    requests = PeerRequests(_link(), lambda: None, PeerConfig(grace=0.03))
    loop = asyncio.get_running_loop()
    began = loop.time()
    pending = requests.submit("echo", None, 0.01, False, False)
    with pytest.raises(RequestTimeout, match=r"echo: no answer in 0\.01 s") as late:
        await pending
    assert late.value.code == ErrorCode.DEADLINE
    assert loop.time() - began >= 0.039
    assert len(requests) == 0


async def test_whoever_waits_to_be_accepted_hears_of_a_timeout() -> None:
    requests = PeerRequests(_link(), lambda: None, PeerConfig(grace=0.001))
    pending = requests.submit("echo", None, 0.001, False, False)
    with pytest.raises(RequestTimeout):
        await pending.accepted()


async def test_an_answer_without_an_accept_counts_as_accepted() -> None:
    requests = _requests()
    pending = requests.submit("echo", None, None, False, False)
    failing = requests.submit("echo", None, None, False, False)
    waits = [asyncio.create_task(one.accepted()) for one in (pending, failing)]
    await asyncio.sleep(0)
    requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=pending.rid, body=b"1"))
    requests.answered(Message(seq=2, ts=1, kind=Kind.RESPONSE, rid=failing.rid, code=500))
    await asyncio.gather(*waits)  # a failure of the handler is no refusal
    assert await pending == 1


async def test_an_answered_request_leaves_no_timer_behind() -> None:
    requests = _requests()
    for end in ("answered", "rejected", "cancelled"):
        pending = requests.submit("echo", None, 60.0, False, False)
        timer = pending.timer
        assert timer is not None
        if end == "answered":
            requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=pending.rid, body=b"1"))
        elif end == "rejected":
            requests.rejected(Rejected(pending.rid, ErrorCode.LIMIT, True, 0, ""))
        else:
            pending.cancel()
        assert timer.cancelled(), end
        assert pending.done


async def test_a_request_that_is_cancelled_while_open_tells_the_gateway_once(gateway: ScriptedGateway) -> None:
    gateway.deaf = True
    async with connect(gateway.url, **QUICK) as peer:
        pending = peer.submit("echo", 1)
        pending.cancel()
        pending.cancel()
        await until(lambda: [type(frame).__name__ for frame in gateway.frames].count("Cancel") == 1)
        gateway.cut_all()
        await until(lambda: len(gateway.hellos) == 2)
        again = peer.submit("echo", 2)
        await until(lambda: gateway.requests[-1].rid == again.rid)
        assert [type(frame).__name__ for frame in gateway.frames].count("Cancel") == 1


class _Noted(ClientLink):
    """Notes which requests it is to cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[int] = []

    def cancel(self, rid: int) -> None:
        self.cancelled.append(rid)


async def test_a_request_that_is_cancelled_without_a_connection_is_cancelled_once_there_is_one() -> None:
    link = _Noted()
    requests = PeerRequests(link, lambda: None, PeerConfig())
    pending = requests.submit("echo", None, None, False, False)
    pending.cancel()
    assert link.cancelled == []
    requests.welcomed()
    requests.welcomed()
    assert link.cancelled == [pending.rid]


async def test_when_all_requests_fail_none_is_left_open() -> None:
    requests = _requests()
    pending = requests.submit("echo", None, None, False, False)
    requests.fail_all(lost("gone"))
    with pytest.raises(RequestLost, match="echo: gone"):
        await pending
    assert len(requests) == 0
    assert not requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=pending.rid, body=b"1"))


# ---- the line


async def test_only_a_hello_of_the_last_minute_accounts_for_being_superseded_and_only_once() -> None:
    line, now = _line(), asyncio.get_running_loop().time()
    line._unwelcomed.append(now - LATE_ATTACH - 1)
    assert not line._superseded_by_itself(CloseCode.SUPERSEDED)
    line._unwelcomed.append(now)
    assert not line._superseded_by_itself(CloseCode.GOING_AWAY)
    assert line._superseded_by_itself(CloseCode.SUPERSEDED)
    assert not line._superseded_by_itself(CloseCode.SUPERSEDED)


async def test_a_transport_that_opens_too_late_is_cut() -> None:
    line = _line()
    late = Wire()
    line.opened(late)  # nobody tries to connect
    assert (late.aborted, late.sent) == (True, [])
    line._gone = asyncio.get_running_loop().create_future()
    line._gone.set_result(ConnectionEnd(1006, "given up"))
    late = Wire()
    line.opened(late)
    assert (late.aborted, late.sent) == (True, [])
    line._gone = asyncio.get_running_loop().create_future()
    wire = Wire()
    line.opened(wire)
    assert not wire.aborted
    assert b"hello" in b"".join(wire.sent)
    line._release()


async def test_what_an_earlier_transport_says_is_nothing_to_the_present_one() -> None:
    line = _line()
    line._gone = asyncio.get_running_loop().create_future()
    earlier, wire = Wire(), Wire()
    line.opened(wire)
    line.received(earlier, b"\xff not a frame")
    line.closed(earlier, 4503, "superseded")
    assert not line._gone.done()
    assert wire.closes == []
    gone = line._gone
    line.closed(wire, 1006, "broken")
    assert gone.result() == ConnectionEnd(1006, "broken")
    line._release()


async def test_a_reason_to_leave_is_cut_to_what_fits_a_close_frame() -> None:
    line = _line()
    line._gone = asyncio.get_running_loop().create_future()
    wire = Wire()
    line.opened(wire)
    line._drop(ConnectionEnd(4002, "x" * 300))
    assert wire.closes == [(4002, "x" * 100)]
    line._release()


async def test_a_connection_ends_once() -> None:
    line = _line()
    line._drop(ConnectionEnd(4000, "nobody tries to connect"))
    line._gone = asyncio.get_running_loop().create_future()
    line._drop(ConnectionEnd(4001, "first"))
    line._drop(ConnectionEnd(4002, "second"))
    assert line._gone.result() == ConnectionEnd(4001, "first")


async def test_an_earlier_tick_takes_the_place_of_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    line = _line()
    line._gone = asyncio.get_running_loop().create_future()
    line.opened(Wire())
    later = line._timer
    assert later is not None
    monkeypatch.setattr(line._link, "deadline", lambda: line._timer_at - 1)
    line._arm()
    assert later.cancelled()
    assert line._timer is not later
    line._release()


async def test_what_is_received_may_be_due_for_an_answer_before_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the ack of a message that came twice."""
    line = _line()
    line._gone = asyncio.get_running_loop().create_future()
    wire = Wire()
    line.opened(wire)
    later, due = line._timer, line._timer_at - 1
    monkeypatch.setattr(line._link, "deadline", lambda: due)
    monkeypatch.setattr(line._link, "receive", lambda data, now: [])
    line.received(wire, b"")
    assert line._timer is not later
    assert line._timer_at == due
    line._release()


async def test_a_mistake_in_the_peer_itself_ends_it_with_that_error(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits is told, as at every other end."""

    async def fail(self: Reconnector) -> SessionClosed | None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Reconnector, "run", fail)
    with pytest.raises(SessionClosed, match="the peer failed: RuntimeError\\('a mistake'\\)"):
        await asyncio.wait_for(connect(gateway.url, **QUICK)._start(), PATIENCE)


async def test_a_peer_that_could_not_start_leaves_no_task_behind(gateway: ScriptedGateway) -> None:
    with pytest.raises(Unreachable):
        await connect("ws://127.0.0.1:1", connect_timeout=0.05, **QUICK)
    assert _peer_tasks() == []
    gateway.refusals = [(4501, 0)]
    with pytest.raises(SessionClosed, match="4501"):
        await connect(gateway.url, on_message=_handle, **QUICK)
    assert _peer_tasks() == []
    gateway.silent = True
    starting = asyncio.ensure_future(connect(gateway.url, **QUICK)._start())
    await until(lambda: gateway.wires)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert _peer_tasks() == []


async def _handle(item: Any) -> None:
    pass


async def test_a_peer_that_is_closed_says_only_that_and_does_not_come_back(either: ScriptedGateway) -> None:
    gateway = either
    events: list[Any] = []
    peer = await connect(gateway.url, on_event=events.append, **QUICK)
    await peer.close()
    assert [type(event) for event in events] == [Connected, Closed]
    assert events[-1].error is None
    await until(lambda: gateway.closes == [(1000, "bye")])
    assert gateway.sessions == {}
    events.clear()
    peer = await connect(gateway.url, on_event=events.append, **QUICK)
    await peer.detach()
    assert [type(event) for event in events] == [Connected, Closed]
    await until(lambda: gateway.closes[1:] == [(1000, "detached")])
    assert list(gateway.sessions) == [peer.session]
    assert len(gateway.hellos) == 2


async def test_a_peer_says_what_it_is_if_its_user_does_not(gateway: ScriptedGateway) -> None:
    for given, said in (("", "veredus-peer-python"), ("my app 1.0", "my app 1.0")):
        async with connect(gateway.url, client=given, **QUICK):
            assert gateway.hellos[-1].client == said


async def test_who_is_moved_owes_nothing_to_earlier_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def backoff(config: PeerConfig, failures: int, chance: float, retry_after: float = 0.0) -> float:
        counted.append(failures)
        return 0.0

    monkeypatch.setattr(PeerConfig, "backoff", backoff)
    line = _line()
    ends = [
        ConnectionEnd(4000, ""),
        ConnectionEnd(4000, ""),
        ConnectionEnd(4000, "", at_once=True),
        ConnectionEnd(4000, ""),
        ConnectionEnd(4501, "no"),
    ]

    async def attempt() -> ConnectionEnd:
        return ends.pop(0)

    monkeypatch.setattr(line, "_attempt", attempt)
    assert await line.run() is not None
    assert counted == [0, 1, 1]


async def test_a_line_that_was_stopped_takes_the_end_of_its_connection_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = _line()
    events: list[Any] = []
    monkeypatch.setattr(line, "_announce", events.append)

    async def attempt() -> ConnectionEnd:
        assert not line._welcomed, "it tries again"
        line._welcomed = True
        await line.stop(bye=True)
        return ConnectionEnd(1000, "closed")

    monkeypatch.setattr(line, "_attempt", attempt)
    assert await line.run() is None
    assert events == []


async def test_a_lost_connection_is_told_with_its_code(gateway: ScriptedGateway) -> None:
    events: list[Any] = []
    async with connect(gateway.url, on_event=events.append, **QUICK) as peer:
        gateway.session.wire.refuse(4009)  # type: ignore[union-attr]
        await until(lambda: peer.stats()["resumes"] == 1)
        (lost,) = [event for event in events if isinstance(event, Disconnected)]
        assert (lost.code, lost.reason) == (4009, "scripted")


async def test_a_token_is_fetched_once_however_often_it_is_said_to_expire(gateway: ScriptedGateway) -> None:
    fetched = 0
    may_go_on = asyncio.Event()

    async def token() -> str:
        nonlocal fetched
        fetched += 1
        if fetched == 2:
            await may_go_on.wait()
        return f"t{fetched}"

    async with connect(gateway.url, token=token, **QUICK):
        wire = gateway.session.wire
        assert wire is not None
        for echo in (1, 2):
            wire.send(Ping(echo, token_expires_ms=60_000))
        await until(lambda: sum(getattr(frame, "echo", 0) == 2 for frame in gateway.frames) == 1)
        assert fetched == 2
        may_go_on.set()
        await until(lambda: Auth("t2") in gateway.frames)
        wire.send(Ping(3, token_expires_ms=60_000))
        await until(lambda: Auth("t3") in gateway.frames)


async def test_a_fixed_token_is_not_sent_again_when_it_is_said_to_expire(gateway: ScriptedGateway) -> None:
    async with connect(gateway.url, token="fixed", **QUICK):
        gateway.session.wire.send(Ping(1, token_expires_ms=60_000))  # type: ignore[union-attr]
        await until(lambda: any(getattr(frame, "echo", 0) == 1 for frame in gateway.frames))
        gateway.session.wire.send(Ping(2))  # type: ignore[union-attr]
        await until(lambda: any(getattr(frame, "echo", 0) == 2 for frame in gateway.frames))
        assert not any(isinstance(frame, Auth) for frame in gateway.frames)


async def test_a_token_function_that_fails_ends_nothing(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[Any] = ["first", ValueError("no token"), 5, "last"]

    def token() -> Any:
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async with connect(gateway.url, token=token, **QUICK) as peer:
        gateway.session.wire.send(Ping(1, token_expires_ms=60_000))  # type: ignore[union-attr]
        await until(lambda: "the token function failed" in caplog.text)
        gateway.cut_all()  # the next token is no text, the one after it is
        await until(lambda: peer.stats()["resumes"] == 1)
        assert [hello.token for hello in gateway.hellos] == ["first", "last"]


async def test_a_token_that_is_no_text_is_told_as_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"token: .*b'secret'.*a string"):
        await _line(lambda: b"secret")._fetch_token()


async def test_a_token_that_is_still_being_fetched_at_the_end_is_called_off(gateway: ScriptedGateway) -> None:
    fetched, ended = 0, asyncio.Event()

    async def token() -> str:
        nonlocal fetched
        fetched += 1
        try:
            if fetched > 1:
                await asyncio.Event().wait()
            return "t"
        finally:
            if fetched > 1:
                ended.set()

    async with connect(gateway.url, token=token, **QUICK):
        gateway.session.wire.send(Ping(1, token_expires_ms=60_000))  # type: ignore[union-attr]
        await until(lambda: fetched == 2)
    await until(ended.is_set, what="the end of the token function")


async def test_told_twice_to_go_away_it_moves_once(gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    async with connect(gateway.url, **QUICK) as peer:
        for within in (150, 20):
            gateway.session.wire.send(GoAway(within, "drain", ""))  # type: ignore[union-attr]
        await until(lambda: peer.stats()["resumes"] == 1)
        await pause(0.2, proves="the second word moves nobody from the new connection")
        assert peer.stats()["resumes"] == 1


async def test_a_hint_that_is_no_address_is_not_followed(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []
    async with connect(gateway.url, on_event=events.append, **QUICK) as peer:
        gateway.session.wire.send(GoAway(20, "drain", "nonsense"))  # type: ignore[union-attr]
        await until(lambda: peer.stats()["resumes"] == 1)
        assert "which is not an address" in caplog.text
        assert [(event.within, event.reason) for event in events if isinstance(event, GoingAway)] == [(0.02, "drain")]


# ---- callbacks


async def test_what_a_plain_callback_returns_does_not_matter_unless_it_is_to_be_awaited(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def on_message(item: Any) -> Any:
        seen.append(item.data)
        return item.data

    async with connect(gateway.url, on_message=on_message, **QUICK):
        gateway.push("a result")
        await until(lambda: gateway.session.acked == 1)
        assert seen == ["a result"]
        assert "on_message failed" not in caplog.text

    future = asyncio.get_running_loop().create_future()
    async with connect(gateway.url, on_message=lambda item: future, **QUICK):
        gateway.push(1)
        await until(lambda: gateway.session.acked == 1)
        assert "declare it with async def" in caplog.text


async def test_a_callback_for_events_that_fails_ends_nothing(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: Any) -> None:
        raise RuntimeError("on purpose")

    async with connect(gateway.url, on_event=on_event, **QUICK) as peer:
        assert await peer.request("echo", 1) == 1
    assert "on_event failed" in caplog.text


# ---- the end of a session


async def test_what_is_asked_of_a_peer_that_is_closed_is_refused(gateway: ScriptedGateway) -> None:
    peer = await connect(gateway.url, **QUICK)
    with pytest.raises(ConfigError, match="was not started"):
        await peer
    assert (peer.closed, peer.connected) == (False, True)
    await peer.close()
    await peer.close()
    assert (peer.closed, peer.connected) == (True, False)
    for ask in (lambda: peer.submit("echo"), lambda: peer.join("room"), lambda: peer.leave("room")):
        with pytest.raises(SessionClosed, match="closed here"):
            ask()
    with pytest.raises(SessionClosed, match="closed here"):
        await peer.receive(PATIENCE)
    assert await peer.receive_many() == []
    await peer.wait_closed()


async def test_the_end_says_what_its_code_means_if_the_gateway_does_not(gateway: ScriptedGateway) -> None:
    for code, text in ((4501, "4501 unauthorized"), (4599, "4599 closed")):
        peer = await connect(gateway.url, **QUICK)
        wire = gateway.session.wire
        assert wire is not None
        wire.send(Close(code, "", 0))
        wire.transport.close(code, "")
        with pytest.raises(SessionClosed, match=text) as ended:
            await asyncio.wait_for(peer.wait_closed(), PATIENCE)
        assert ended.value.code == code
        await peer.close()


async def test_nobody_reads_is_said_once_and_only_when_the_window_is_full(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with connect(gateway.url, window_messages=3, **QUICK) as peer:
        for n in range(2):
            gateway.push(n)
        await until(lambda: peer.stats()["waiting"] == 2)
        assert "nothing reads them" not in caplog.text
        for n in range(2):
            gateway.push(n)
        await until(lambda: peer.stats()["waiting"] == 4)
        assert caplog.text.count("nothing reads them") == 1


async def test_a_request_is_sent_as_what_it_is(gateway: ScriptedGateway) -> None:
    """Bytes as bytes, anything else as JSON, nothing as nothing."""
    async with connect(gateway.url, **QUICK) as peer:
        for body in (b"raw", bytearray(b"array"), None, {"a": 1}):
            await peer.request("echo", body)
        sent: list[Request] = gateway.requests
        assert [(one.body, one.encoding) for one in sent] == [
            (b"raw", "raw"),
            (b"array", "raw"),
            (b"", "json"),
            (b'{"a":1}', "json"),
        ]
