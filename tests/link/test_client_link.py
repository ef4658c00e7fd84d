"""The client's end: order, duplicates, acks, requests over reconnects, what was lost, a server that stalls or dies."""

from __future__ import annotations

import pytest

from tests.link.support import EPOCH, drain, sent
from veredus.errors import ConfigError
from veredus.link.session import (
    Accepted,
    ClientLink,
    Discontinued,
    Ended,
    Going,
    Lost,
    Received,
    Rejected,
    TokenExpiring,
    VolatileReceived,
    Welcomed,
)
from veredus.model.delivery import Cursor
from veredus.model.frames import (
    Accept,
    Ack,
    Auth,
    Bye,
    Cancel,
    Close,
    CloseCode,
    Frame,
    Gap,
    GoAway,
    Hello,
    Join,
    Kind,
    Leave,
    Message,
    OpenRequest,
    Ping,
    Pong,
    Reject,
    Request,
    Resume,
    Volatile,
    Welcome,
)

START = Cursor(EPOCH, 0, 0)


def welcome(result: str = "new", *, sid: str = "p001-s", cursor: Cursor = START, **more: object) -> Welcome:
    return Welcome(sid, "secret", result, cursor=cursor, **more)  # type: ignore[arg-type]


def open_client(**more: object) -> ClientLink:
    link = ClientLink(token="t", **more)  # type: ignore[arg-type]
    link.connected(0.0)
    assert isinstance(drain(link)[0], Hello)
    link.receive(sent(welcome()), 0.0)
    drain(link)
    return link


def message(seq: int, **more: object) -> Message:
    return Message(seq, 1000 + seq, **more)  # type: ignore[arg-type]


def at(seq: int) -> Cursor:
    return Cursor(EPOCH, seq, 1000 + seq)


def reconnect(link: ClientLink, answer: Welcome, now: float = 1.0) -> tuple[Hello, list[object], list[Frame]]:
    link.disconnected(now)
    link.connected(now)
    (hello,) = drain(link)
    assert isinstance(hello, Hello)
    events = link.receive(sent(answer), now)
    return hello, list(events), drain(link)


def test_messages_come_with_the_cursor_to_call_done_with() -> None:
    link = open_client()
    assert link.receive(sent(message(1), message(2)), 1.0) == [
        Received(message(1), at(1)),
        Received(message(2), at(2)),
    ]
    assert link.cursor == START


def test_o4_duplicates_are_dropped_and_a_hole_ends_the_connection() -> None:
    link = open_client()
    assert len(link.receive(sent(message(1), message(1), message(2), message(1)), 1.0)) == 2
    assert link.duplicates == 2
    (end,) = link.receive(sent(message(4)), 1.0)
    assert isinstance(end, Ended)
    assert end.code == CloseCode.INSUFFICIENT_STATE
    assert link.receive(sent(message(3)), 1.0) == []


def test_a_message_older_than_its_predecessor_ends_the_connection() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    (end,) = link.receive(sent(Message(2, 900)), 1.0)
    assert isinstance(end, Ended)
    assert end.code == CloseCode.INSUFFICIENT_STATE


@pytest.mark.parametrize("data", [b"\x05hello", sent(Message(0, 5)), sent(Ack(1)), sent(Welcome("s", "k", "new"))])
def test_what_breaks_the_protocol_ends_it(data: bytes) -> None:
    (end,) = open_client().receive(data, 1.0)
    assert isinstance(end, Ended)
    assert end.code == CloseCode.BAD_FRAME


def test_before_the_welcome_only_a_welcome_or_a_close_may_come() -> None:
    for frame, code in ((message(1), CloseCode.BAD_FRAME), (Close(4501, "no"), CloseCode.UNAUTHORIZED)):
        link = ClientLink()
        link.connected(0.0)
        (end,) = link.receive(sent(frame), 0.0)
        assert isinstance(end, Ended)
        assert end.code == code


# ---- acks


def test_an_ack_leaves_after_32_messages_or_16_kib_or_100_ms_and_not_before() -> None:
    link = open_client()
    link.receive(sent(*(message(seq) for seq in range(1, 61))), 1.0)
    for seq in range(1, 32):
        link.done(at(seq), 1.0)
    assert not link.has_output
    link.done(at(32), 1.0)
    assert drain(link) == [Ack(32)]
    link.done(at(33), 2.0)
    assert link.deadline() == pytest.approx(2.1)
    link.tick(2.09)
    assert not link.has_output
    link.tick(2.1)
    assert drain(link) == [Ack(33)]
    link.receive(sent(message(61, body=b"1" * 20_000)), 2.2)
    link.done(at(61), 2.2)
    assert drain(link) == [Ack(61)]


def test_an_ack_leaves_when_three_quarters_of_the_window_are_used() -> None:
    link = ClientLink(window_messages=8)
    link.connected(0.0)
    link.receive(sent(welcome(limits=welcome().limits._replace(window_messages=8))), 0.0)
    drain(link)
    link.receive(sent(*(message(seq) for seq in range(1, 7))), 1.0)
    link.done(at(1), 1.0)
    assert drain(link) == [Ack(1)]


def test_a_pong_carries_the_ack() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(1), 1.0)
    link.receive(sent(Ping(7, 1)), 1.05)
    assert drain(link) == [Pong(7, 1)]
    link.tick(2.0)
    assert not link.has_output


def test_a_ping_does_not_swallow_the_word_about_answered_requests() -> None:
    """A pong acknowledges messages only: the gateway forgets a request by the rid_floor of an ack."""
    link = open_client()
    link.request("a")
    drain(link)
    link.receive(sent(message(1, kind=Kind.RESPONSE, rid=1)), 1.0)
    link.done(at(1), 1.0)
    link.receive(sent(Ping(7, 1)), 1.05)
    assert drain(link) == [Pong(7, 1)]
    assert link.deadline() == pytest.approx(1.1)
    link.tick(1.1)
    assert drain(link) == [Ack(1, 1)]


def test_a_repeated_message_that_was_handled_is_acknowledged_once_more() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(1), 1.0)
    link.tick(1.1)
    assert drain(link) == [Ack(1)]
    assert link.receive(sent(message(1)), 16.0) == []
    link.tick(16.0)
    assert drain(link) == [Ack(1)]


def test_done_takes_only_what_was_received() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(2), 1.0)
    link.done(at(1)._replace(ts=5), 1.0)
    assert link.cursor == START
    link.done(at(1), 1.0)
    link.done(at(1), 1.0)
    link.done(Cursor("another", 9, 9), 1.0)
    assert link.cursor == at(1)


# ---- reconnects


def test_a_cursor_of_another_log_acknowledges_nothing() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(Cursor("e0", 1, 1001), 1.0)
    assert link.cursor == START


def test_a_resume_asks_from_what_was_done_and_drops_what_was_received_before() -> None:
    link = open_client()
    link.receive(sent(*(message(seq) for seq in range(1, 6))), 1.0)
    link.done(at(3), 1.0)
    hello, events, _ = reconnect(link, welcome("resumed", cursor=at(3), top=6))
    assert hello.resume == Resume("p001-s", "secret", at(3))
    assert [type(event) for event in events] == [Welcomed]
    events = list(link.receive(sent(*(message(seq) for seq in range(4, 7))), 2.0))
    assert events == [Received(message(6), at(6))]
    link.done(at(5), 2.0)
    link.tick(3.0)
    assert drain(link) == [Ack(5)]


def test_requests_without_an_answer_are_sent_again_after_the_resume_with_the_floor() -> None:
    link = open_client()
    rids = [link.request("a", b"%d" % i) for i in range(4)]
    assert rids == [1, 2, 3, 4]
    assert [frame.rid for frame in drain(link) if isinstance(frame, Request)] == rids
    link.receive(sent(message(1, kind=Kind.RESPONSE, rid=1), Accept(2), message(2, kind=Kind.RESPONSE, rid=3)), 1.0)
    link.done(at(2), 1.0)
    hello, _, again = reconnect(link, welcome("resumed", cursor=at(2), open=(OpenRequest(2, "open"),)))
    assert hello.rid_floor == 1
    assert again == [Request(4, "a", b"3")]
    assert link.unanswered == 2


def test_a_request_made_without_a_connection_leaves_after_the_welcome() -> None:
    link = ClientLink()
    assert link.request("early", b"1") == 1
    assert not link.has_output
    link.connected(0.0)
    drain(link)
    link.receive(sent(welcome()), 0.0)
    assert drain(link) == [Request(1, "early", b"1")]


def test_an_answer_is_settled_when_it_was_handled_not_when_it_came() -> None:
    link = open_client()
    link.request("a")
    drain(link)
    link.receive(sent(message(1, kind=Kind.RESPONSE, rid=1)), 1.0)
    assert link.unanswered == 1
    link.done(at(1), 1.0)
    assert link.unanswered == 0
    link.tick(2.0)
    assert drain(link) == [Ack(1, 1)]


def test_no_reply_is_settled_by_the_accept_and_a_reject_settles_anything() -> None:
    link = open_client()
    link.request("a", no_reply=True)
    link.request("b")
    drain(link)
    assert link.receive(sent(Accept(1), Reject(2, 404, False, 0, "what?")), 1.0) == [
        Accepted(1),
        Rejected(2, 404, False, 0, "what?"),
    ]
    assert link.unanswered == 0
    assert link.receive(sent(Reject(2, 404)), 1.0) == []


def test_what_was_rejected_as_retryable_may_be_sent_again_or_given_up() -> None:
    link = open_client()
    for action in ("a", "b"):
        link.request(action)
    drain(link)
    rejects = [Reject(1, 429, True, 50, "slow"), Reject(2, 503, True, 50, "away")]
    assert link.receive(sent(*rejects), 1.0) == [Rejected(*one) for one in rejects]
    assert link.unanswered == 2
    link.send_again(1)
    assert drain(link) == [Request(1, "a")]
    link.give_up(2)
    assert link.unanswered == 1
    link.request("c")
    drain(link)
    link.receive(sent(Reject(3, 503, True, 50, "away")), 1.0)
    _, events, again = reconnect(link, welcome("reset", sid="other", reason="unknown"))
    assert Rejected(1, 504, False, 0, "the session is lost; the outcome is unknown") in events
    assert again == [Request(3, "c")], "it did not run in the old session"


def test_a_reset_is_told_once_and_counts_from_its_own_cursor() -> None:
    link = open_client()
    link.request("a")
    link.receive(sent(message(1), message(2)), 1.0)
    base = Cursor("e2", 7, 5000)
    _, events, again = reconnect(link, welcome("reset", cursor=base, reason="fork", top=8))
    assert [type(event) for event in events] == [Welcomed, Discontinued]
    assert events[1] == Discontinued("fork")
    assert again == [Request(1, "a")]
    link.done(at(2), 2.0)  # of the old epoch
    assert link.cursor == base
    new = Message(8, 5001)
    assert link.receive(sent(new), 2.0) == [Received(new, Cursor("e2", 8, 5001))]


def test_an_answer_that_was_not_handled_before_a_reset_settles_nothing() -> None:
    """It comes again under the new epoch. Until then its request is open, and sent again after a lost connection."""
    link = open_client()
    link.request("a")
    link.receive(sent(message(1, kind=Kind.RESPONSE, rid=1)), 1.0)
    reconnect(link, welcome("reset", cursor=Cursor("e2", 0, 0), reason="fork", top=2))
    link.receive(sent(Message(1, 5000)), 2.0)
    link.done(Cursor("e2", 1, 5000), 2.0)
    assert link.unanswered == 1
    link.receive(sent(Message(2, 5001, kind=Kind.RESPONSE, rid=1)), 2.0)
    link.done(Cursor("e2", 2, 5001), 2.0)
    assert link.unanswered == 0


def test_a_fork_behind_what_was_done_is_found_by_the_time_of_a_repeated_message() -> None:
    link = open_client()
    link.receive(sent(*(message(seq) for seq in range(1, 5))), 1.0)
    link.done(at(1), 1.0)
    reconnect(link, welcome("resumed", cursor=at(1), top=4))
    replaced = Message(3, 7000)
    events = link.receive(sent(message(2), replaced, Message(4, 7001)), 2.0)
    assert events == [
        Discontinued("fork"),
        Received(replaced, Cursor(EPOCH, 3, 7000)),
        Received(Message(4, 7001), Cursor(EPOCH, 4, 7001)),
    ]
    link.done(at(4), 2.0)  # of the log that is gone
    assert link.cursor == at(1)
    link.done(Cursor(EPOCH, 4, 7001), 2.0)
    assert link.cursor == Cursor(EPOCH, 4, 7001)


def test_a_log_that_ends_before_what_was_received_is_a_discontinuity() -> None:
    link = open_client()
    link.receive(sent(*(message(seq) for seq in range(1, 5))), 1.0)
    link.done(at(1), 1.0)
    _, events, _ = reconnect(link, welcome("resumed", cursor=at(1), top=2))
    assert events[1:] == [Discontinued("fork")]
    assert link.received == at(2)
    assert link.receive(sent(message(2), Message(3, 7000)), 2.0) == [Received(Message(3, 7000), Cursor(EPOCH, 3, 7000))]


def test_after_a_resume_only_what_is_done_or_was_accepted_is_not_sent_again() -> None:
    link = open_client()
    link.request("one way", no_reply=True)
    for action in ("noted only", "accepted", "forgotten"):
        link.request(action)
    drain(link)
    link.receive(sent(Accept(3), Accept(4)), 1.0)
    known = (OpenRequest(1, "done"), OpenRequest(2, "open"), OpenRequest(3, "open"))
    _, events, again = reconnect(link, welcome("resumed", open=known))
    assert events[1:] == [Accepted(1)]
    assert again == [Request(2, "noted only"), Request(4, "forgotten")]
    assert link.unanswered == 3


def test_when_the_session_is_gone_what_was_sent_is_given_up_and_what_was_not_is_sent() -> None:
    link = open_client()
    link.request("sent")
    link.request("answered")
    drain(link)
    link.receive(sent(message(1, kind=Kind.RESPONSE, rid=2)), 1.0)
    link.done(at(1), 1.0)
    link.disconnected(1.0)
    link.request("new")
    link.connected(1.0)
    drain(link)
    events = link.receive(sent(welcome("reset", sid="p001-other", cursor=Cursor("e9", 0, 0), reason="unknown")), 1.0)
    assert events[1] == Discontinued("unknown")
    assert isinstance(events[2], Rejected)
    assert (events[2].rid, events[2].code, events[2].retryable) == (1, 504, False)
    assert len(events) == 3
    assert drain(link) == [Request(3, "new")]
    assert link.session_id == "p001-other"


def test_another_process_takes_the_session_up() -> None:
    link = ClientLink()
    link.restore("p001-s", "k", at(5), next_rid=8)
    link.connected(0.0)
    (hello,) = drain(link)
    assert isinstance(hello, Hello)
    assert (hello.resume, hello.rid_floor) == (Resume("p001-s", "k", at(5)), 7)
    link.receive(sent(welcome("resumed", cursor=at(5))), 0.0)
    assert link.receive(sent(message(6)), 0.0) == [Received(message(6), at(6))]
    assert link.request("a") == 8


# ---- losses


def test_a_gap_is_told_with_its_range_and_the_next_message_follows_it() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    events = link.receive(sent(Gap(2, 5, "quota", 1005), message(6)), 1.0)
    assert events == [Lost(2, 5, "quota", at(5)), Received(message(6), at(6))]
    assert link.receive(sent(Gap(2, 5)), 1.0) == []
    events = link.receive(sent(Gap(5, 8)), 1.0)
    assert events == [Lost(7, 8, "", Cursor(EPOCH, 8, 0))]
    (end,) = link.receive(sent(Gap(12, 13)), 1.0)
    assert isinstance(end, Ended)


def test_a_tombstone_is_a_loss_of_one() -> None:
    link = open_client()
    assert link.receive(sent(message(1, kind=Kind.TOMBSTONE)), 1.0) == [Lost(1, 1, "expired", at(1))]


# ---- time


def test_a_silent_server_counts_as_dead_after_heartbeat_pong_and_slack() -> None:
    link = open_client()
    assert link.deadline() == 37.0
    assert link.tick(36.9) == []
    (end,) = link.tick(37.0)
    assert isinstance(end, Ended)
    assert end.code == CloseCode.NO_PONG


def test_half_a_frame_is_no_sign_of_life() -> None:
    link = open_client()
    for second, byte in enumerate(sent(message(1, body=b"1" * 100))[:36], 1):
        assert link.receive(bytes([byte]), float(second)) == []
    assert isinstance(link.tick(37.0)[0], Ended)


def test_a_server_that_never_welcomes() -> None:
    link = ClientLink()
    link.connected(0.0)
    assert link.deadline() == 10.0
    assert isinstance(link.tick(10.0)[0], Ended)


def test_a_stall_is_found_by_the_top_in_a_ping() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(1), 1.0)
    link.receive(sent(Ping(1, 3)), 10.0)
    assert link.deadline() == 15.0
    assert link.tick(14.9) == []
    (end,) = link.tick(15.0)
    assert isinstance(end, Ended)
    assert end.code == CloseCode.INSUFFICIENT_STATE


def test_a_stall_is_found_after_a_resume_that_said_what_no_ack_had() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(1), 1.0)
    hello, _, _ = reconnect(link, welcome("resumed", cursor=at(1), top=3), now=1.01)
    assert hello.resume is not None
    assert hello.resume.cursor == at(1)
    assert link.tick(1.5) == []
    assert drain(link) == [], "the resume has said it"
    assert link.deadline() == 6.01
    (end,) = link.tick(6.01)
    assert isinstance(end, Ended)


def test_a_ping_with_the_same_top_gives_a_stalled_server_no_more_time() -> None:
    link = open_client()
    link.receive(sent(Ping(1, 3)), 10.0)
    link.receive(sent(Ping(2, 3)), 13.0)
    assert isinstance(link.tick(15.0)[0], Ended)


def test_a_new_connection_begins_with_its_hello_whatever_became_of_the_last_one() -> None:
    link = open_client()
    link.receive(sent(message(1)), 1.0)
    link.done(at(1), 1.0)
    link.request("left over")
    link.connected(1.0)
    assert [type(frame) for frame in drain(link)] == [Hello]
    link.receive(sent(welcome("resumed", cursor=at(1), top=1)), 1.0)
    assert link.deadline() > 30.0, "no ack is due: the hello said what was handled"


def test_a_server_that_delivers_what_it_has_told_of_is_not_stalled() -> None:
    link = open_client()
    link.receive(sent(Ping(1, 9)), 10.0)
    for seq in (1, 2):
        now = 10.0 + seq * 3
        link.receive(sent(message(seq)), now)
        link.done(at(seq), now)
        assert link.tick(now + 2.0) == []
    link.receive(sent(Gap(3, 5, "quota", 1005)), 20.0)
    link.done(at(5), 20.0)
    assert link.tick(22.0) == []
    assert link.deadline() == 25.0
    assert isinstance(link.tick(25.0)[0], Ended)


def test_our_own_slowness_is_no_stall() -> None:
    link = open_client()
    link.receive(sent(message(1), Ping(1, 3)), 1.0)
    assert link.tick(30.0) == []


# ---- the rest


def test_other_events_and_frames() -> None:
    link = open_client()
    events = link.receive(
        sent(GoAway(5, "drain", "b"), Volatile("t", b"1"), Ping(1, 0, False, 60_000), Close(4000, "x", 7)), 1.0
    )
    assert events == [
        Going(5, "drain", "b"),
        VolatileReceived("t", b"1", "json"),
        TokenExpiring(60_000),
        Ended(4000, "x", 7),
    ]
    link = open_client()
    link.cancel(1)
    link.join("g")
    link.leave("g")
    link.authenticate("new")
    link.bye(2)
    assert drain(link) == [Cancel(1), Join("g"), Leave("g"), Auth("new"), Bye(2)]
    link.disconnected(1.0)
    link.join("g")
    assert not link.has_output


def test_a_new_token_is_shown_at_the_next_connection_too() -> None:
    link = open_client()
    link.authenticate("new")
    drain(link)
    hello, _, _ = reconnect(link, welcome("resumed"))
    assert hello.token == "new"


@pytest.mark.parametrize(("action", "body"), [("", b""), ("a" * 257, b""), ("a", b"1" * 65_000)])
def test_a_request_that_cannot_be_sent_is_refused_at_once(action: str, body: bytes) -> None:
    link = open_client()
    with pytest.raises(ConfigError):
        link.request(action, body)
    assert link.unanswered == 0


def test_only_what_the_new_server_has_shown_to_have_is_acknowledged_to_it() -> None:
    """After a failover it may have other messages under the numbers behind the cursor."""
    link = open_client()
    link.receive(sent(*[message(seq) for seq in (1, 2, 3)]), 0.0)
    reconnect(link, welcome("resumed", top=3))
    link.done(at(3), 2.0)
    link.tick(3.0)
    assert drain(link) == []
    link.receive(sent(message(1), message(2)), 4.0)
    link.tick(4.5)
    assert drain(link) == [Ack(2, 0)]
    link.receive(sent(message(3)), 5.0)
    link.tick(5.5)
    assert drain(link) == [Ack(3, 0)]
