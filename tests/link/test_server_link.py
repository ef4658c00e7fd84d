"""The gateway's end: states, window, hints and reads, heartbeat, slow readers, close codes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.link.support import EPOCH, PROTOBUF, drain, entries, entry, open_server, sent, seqs
from veredus.errors import ConfigError
from veredus.link.session import Acked, Ended, LinkConfig, ServerEvent, ServerLink, SlowConsumer, Wanted
from veredus.model.delivery import Cursor
from veredus.model.frames import (
    MAX_FRAME_FROM_SERVER,
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
    Ping,
    Pong,
    Reject,
    Request,
    Volatile,
    Welcome,
)


def new_link(config: LinkConfig | None = None) -> ServerLink:
    return ServerLink("protobuf", config or LinkConfig(), 0.0)


def ended(code: CloseCode, events: Sequence[ServerEvent]) -> bool:
    last = events[-1]
    return isinstance(last, Ended) and last.code == code


# ---- states


def test_hello_is_told_and_the_welcome_leaves_together_with_the_first_of_the_replay() -> None:
    link = new_link()
    hello = Hello(token="t", window_messages=10)
    assert link.receive(sent(hello), 1.0) == [hello]
    assert link.state == "asked"
    link.welcome(Welcome("p001-s", "k", "resumed", cursor=Cursor(EPOCH, 5, 1005), top=8), entries(6, 8), 1.0)
    (chunk,) = link.take_output()
    frames = PROTOBUF.decoder(10**6).feed(chunk)
    assert isinstance(frames[0], Welcome)
    assert frames[0].limits.window_messages == 10
    assert (frames[0].heartbeat_ms, frames[0].pong_ms) == (25_000, 10_000)
    assert seqs(frames) == [6, 7, 8]
    assert not link.has_output


@pytest.mark.parametrize(
    "frame",
    [Request(1, "a"), Ack(0), Cancel(1), Pong(1), Join("g"), Leave("g"), Auth("t"), Bye(), Message(1, 1), Ping(1)],
)
def test_anything_but_a_hello_at_first_is_a_bad_frame(frame: Frame) -> None:
    link = new_link()
    events = link.receive(sent(frame), 0.0)
    assert ended(CloseCode.BAD_FRAME, events)
    assert isinstance(drain(link)[-1], Close)
    assert link.receive(sent(Hello()), 0.0) == []


def test_nothing_may_come_between_hello_and_welcome() -> None:
    link = new_link()
    assert ended(CloseCode.BAD_FRAME, link.receive(sent(Hello(), Request(1, "a")), 0.0))


@pytest.mark.parametrize("frame", [Hello(), Message(1, 1), Ping(1), Welcome("s", "k", "new"), Close(4000)])
def test_a_second_hello_or_a_servers_frame_is_a_bad_frame(frame: Frame) -> None:
    assert ended(CloseCode.BAD_FRAME, open_server().receive(sent(frame), 0.0))


def test_another_version_is_refused_by_name() -> None:
    events = new_link().receive(sent(Hello(version=2)), 0.0)
    assert ended(CloseCode.VERSION_UNSUPPORTED, events)


def test_no_hello_in_time() -> None:
    link = new_link()
    assert link.deadline() == 10.0
    assert link.tick(9.9) == []
    assert ended(CloseCode.HELLO_TIMEOUT, link.tick(10.0))
    assert link.deadline() == float("inf")


def test_a_half_frame_is_no_hello() -> None:
    link = new_link()
    for byte in sent(Hello(token="slow"))[:-1]:
        assert link.receive(bytes([byte]), 1.0) == []
    assert ended(CloseCode.HELLO_TIMEOUT, link.tick(10.0))


def test_a_session_that_cannot_be_opened_in_time_ends_resumable() -> None:
    link = new_link()
    link.receive(sent(Hello()), 5.0)
    assert link.tick(14.0) == []
    assert ended(CloseCode.BACKEND_UNAVAILABLE, link.tick(15.0))
    link.welcome(Welcome("p001-s", "k", "new"), (), 16.0)
    assert link.state == "closed"


def test_requests_and_the_like_are_passed_on_as_they_are() -> None:
    link = open_server()
    frames: list[Frame] = [Request(1, "a", b"1"), Cancel(1), Join("g"), Leave("g"), Auth("t")]
    assert link.receive(sent(*frames), 1.0) == frames


def test_bye_ends_the_session() -> None:
    events = open_server().receive(sent(Bye(3), Request(1, "a")), 1.0)
    assert events == [Bye(3), Ended(CloseCode.SESSION_CLOSED, "bye")]


def test_a_cut_off_frame_in_a_whole_message_is_refused_on_a_stream_it_is_awaited() -> None:
    data = sent(Hello(token="abc"))
    whole = ServerLink("protobuf", LinkConfig(), 0.0, whole_messages=True)
    assert ended(CloseCode.BAD_FRAME, whole.receive(data[:-1], 0.0))
    stream = new_link()
    assert stream.receive(data[:-1], 0.0) == []
    assert stream.receive(data[-1:], 0.0) == [Hello(token="abc")]


def test_garbage_and_oversized_frames_have_their_codes() -> None:
    assert ended(CloseCode.BAD_FRAME, new_link().receive(b"\x05hello", 0.0))
    assert ended(CloseCode.TOO_LARGE, new_link().receive(b"\xff\xff\x7f", 0.0))
    link = open_server(LinkConfig(max_frames=10))
    assert ended(CloseCode.RATE_LIMITED, link.receive(sent(*[Ack(0)] * 11), 0.0))


def test_a_client_that_asks_and_does_not_read_the_answers_cannot_fill_the_memory() -> None:
    link = open_server(LinkConfig(frame_burst=10**6))
    rid = 0
    events: list[Ended] = []
    while not events:
        requests = [Request(rid + i, "a") for i in range(1, 501)]
        events = [event for event in link.receive(sent(*requests), 1.0) if isinstance(event, Ended)]
        for request in requests:
            link.reject(request.rid, 429, 1.0)
        rid += 500
    assert ended(CloseCode.RATE_LIMITED, events)
    assert rid <= 6000


# ---- order and window


def test_entries_leave_in_order_however_the_hints_come() -> None:
    link = open_server()
    link.offer_entries([entry(2), entry(3)], 1.0)
    assert link.wanted() == Wanted(1, 1, 256 * 1024)
    link.offer_entries([entry(1), entry(1), entry(3)], 1.0)
    assert seqs(drain(link)) == [1, 2, 3]
    assert link.duplicates == 2
    assert link.wanted() is None


def test_the_window_of_messages_is_kept_and_what_is_beyond_it_is_wanted_later() -> None:
    link = open_server(LinkConfig(window_messages=8))
    link.offer_entries(entries(1, 20), 1.0)
    assert seqs(drain(link)) == list(range(1, 9))
    assert link.wanted() is None
    assert link.receive(sent(Ack(1)), 1.0) == [Acked(1, 0, 1001)]
    assert link.wanted() is None  # less than a quarter of the window
    link.receive(sent(Ack(4)), 1.0)
    assert link.wanted() == Wanted(9, 4, 256 * 1024 - link.pending_bytes)
    link.offer_read(EPOCH, 4, 0, 20, entries(9, 12), 1.0)
    assert seqs(drain(link)) == [9, 10, 11, 12]


def test_the_window_of_bytes_is_kept_but_one_message_always_fits() -> None:
    link = open_server(LinkConfig(window_bytes=10_000))
    link.offer_entries(entries(1, 5, size=4000), 1.0)
    assert seqs(drain(link)) == [1, 2]
    link.receive(sent(Ack(2)), 1.0)
    link.offer_entries([entry(3, size=50_000)], 1.0)
    assert seqs(drain(link)) == [3]
    assert link.wanted() is None


def test_what_waits_for_its_turn_counts_in_the_window_of_bytes() -> None:
    """Otherwise hints that come ahead of a missing number would be kept beyond what the client agreed to."""
    link = open_server(LinkConfig(window_bytes=10_000))
    link.offer_entries([entry(1, size=4000), *entries(3, 6, size=4000)], 1.0)
    assert link.get_queue_stats()["queue_size"] == 1
    link.offer_entries([entry(2)], 1.0)
    assert seqs(drain(link)) == [1, 2, 3]


def test_a_client_may_ask_for_a_smaller_window_not_for_a_larger_one() -> None:
    for asked, agreed in ((4, 4), (9999, 256), (0, 256)):
        link = open_server(hello=Hello(window_messages=asked))
        link.offer_entries(entries(1, 300), 1.0)
        assert link.pending_count == agreed


def test_a_client_may_ask_for_fewer_bytes_not_for_more() -> None:
    for asked, agreed in ((5000, 1), (10**9, 2), (0, 2)):
        link = open_server(LinkConfig(window_bytes=10_000), hello=Hello(window_bytes=asked))
        link.offer_entries(entries(1, 5, size=4000), 1.0)
        assert link.pending_count == agreed


def test_what_the_client_has_is_not_in_the_replay() -> None:
    link = new_link()
    link.receive(sent(Hello()), 0.0)
    link.welcome(Welcome("p001-s", "k", "resumed", cursor=Cursor(EPOCH, 5, 1005), top=7), entries(4, 7), 0.0)
    assert (seqs(drain(link)), link.duplicates) == ([6, 7], 0)


def test_an_older_word_of_how_far_the_log_reaches_takes_nothing_back() -> None:
    link = open_server()
    link.note_top(5)
    link.note_top(3)
    assert link.top == 5


def test_little_room_is_enough_for_all_that_is_missing() -> None:
    link = open_server(LinkConfig(window_messages=16))
    link.offer_entries(entries(1, 15), 0.0)
    link.note_top(16)
    wanted = link.wanted()
    assert wanted is not None
    assert (wanted.from_seq, wanted.count) == (16, 1)
    link.note_top(17)
    assert link.wanted() is None, "small reads are saved up while more is missing than would fit"


@pytest.mark.parametrize(("sent_count", "wanted"), [(11, 5), (12, 4), (13, None)])
def test_reads_wait_until_a_quarter_of_the_windows_messages_is_free(sent_count: int, wanted: int | None) -> None:
    link = open_server(LinkConfig(window_messages=16))
    link.offer_entries(entries(1, sent_count), 0.0)
    link.note_top(100)
    found = link.wanted()
    assert (found and found.count) == wanted


@pytest.mark.parametrize(("window_bytes", "reads"), [(40_000, True), (39_999, True), (39_996, False)])
def test_reads_wait_until_a_quarter_of_the_windows_bytes_is_free(window_bytes: int, reads: bool) -> None:
    """Three messages of 10,000 bytes are on their way; a quarter is rounded down."""
    link = open_server(LinkConfig(window_bytes=window_bytes))
    first = entry(1, size=9000)
    pending = open_server()
    pending.offer_entries([first], 0.0)
    fill = 10_000 - pending.pending_bytes
    link.offer_entries(entries(1, 3, size=9000 + fill), 0.0)
    assert link.pending_bytes == 30_000
    link.note_top(4)
    assert (link.wanted() is not None) is reads


def test_entries_far_ahead_do_not_fill_the_memory() -> None:
    link = open_server(LinkConfig(window_messages=16))
    link.offer_entries(entries(5, 2000), 1.0)
    assert link.get_queue_stats()["queue_size"] == 12
    assert link.wanted() == Wanted(1, 4, 256 * 1024)


def test_an_expired_entry_becomes_a_tombstone_so_that_no_number_is_missing() -> None:
    link = open_server()
    expiries = [500, 1000, 1001, 0]
    link.offer_entries([entry(seq, expiry=expiry) for seq, expiry in enumerate(expiries, 1)], 1.0, wall_ms=1000)
    frames = drain(link)
    assert seqs(frames) == [1, 2, 3, 4]
    kinds = [frame.kind for frame in frames if isinstance(frame, Message)]
    assert kinds == [Kind.TOMBSTONE, Kind.TOMBSTONE, Kind.NOTIFY, Kind.NOTIFY]


def test_a_range_that_policy_dropped_is_announced_in_its_place() -> None:
    link = open_server()
    link.offer_entries(entries(1, 2), 1.0)
    link.note_top(9)
    assert link.offer_read(EPOCH, 6, 6, 9, entries(7, 9), 1.0, floor_ts=1006) == []
    frames = drain(link)
    assert frames[2] == Gap(3, 6, "quota", 1006)
    assert seqs(frames) == [1, 2, 7, 8, 9]
    assert link.receive(sent(Ack(9)), 1.0) == [Acked(9, 0, 1009)]


def test_behind_a_gap_the_log_is_known_by_the_time_of_its_floor() -> None:
    """What was sent before the gap says nothing about the number at its end."""
    link = open_server()
    link.offer_entries(entries(1, 2), 1.0)
    link.offer_read(EPOCH, 6, 6, 6, [], 1.0, floor_ts=1006)
    link.verify_log()
    assert link.offer_read(EPOCH, 6, 6, 6, [], 2.0, floor_ts=1006) == []
    link.verify_log()
    read = link.offer_read(EPOCH, 6, 6, 6, [], 3.0, floor_ts=9999)
    assert ended(CloseCode.INSUFFICIENT_STATE, read)
    link = open_server()
    link.offer_entries(entries(1, 2), 1.0)
    link.offer_read(EPOCH, 6, 6, 6, [], 1.0)  # its time is not known
    link.verify_log()
    assert link.offer_read(EPOCH, 6, 6, 6, [], 2.0, floor_ts=1006) == []


def test_behind_a_gap_of_an_unknown_time_nothing_older_than_what_was_sent_leaves() -> None:
    link = open_server()
    link.offer_entries(entries(1, 5), 0.0)
    link.offer_read(EPOCH, 8, 8, 9, [entry(9, ts=500)], 0.0)
    frames = drain(link)
    assert (seqs(frames), frames[-1]) == ([1, 2, 3, 4, 5], Gap(6, 8, "quota", 0))


def test_a_gap_known_at_the_attach_leaves_between_welcome_and_replay() -> None:
    link = new_link()
    link.receive(sent(Hello()), 0.0)
    welcome = Welcome("p001-s", "k", "resumed", cursor=Cursor(EPOCH, 6, 1006), top=8)
    link.welcome(welcome, entries(7, 8), 0.0, gap=(4, 6))
    frames = drain(link)
    assert frames[1] == Gap(4, 6, "quota", 1006)
    assert seqs(frames) == [7, 8]


@pytest.mark.parametrize(
    ("epoch", "floor", "policy_floor", "top", "first", "ts"),
    [
        ("other", 0, 0, 5, 4, 2000),
        (EPOCH, 0, 0, 2, 4, 2000),  # the log ends before what was sent: a failover has lost its tail
        (EPOCH, 4, 0, 5, 5, 2000),  # gone, and no policy says so
        (EPOCH, 0, 0, 5, 4, 900),  # the next one is older than the last: another log
        (EPOCH, 0, 0, 5, 4, 1003),  # or as old as that: times increase
    ],
)
def test_a_log_that_is_not_the_one_we_followed_ends_the_connection_as_insufficient_state(
    epoch: str, floor: int, policy_floor: int, top: int, first: int, ts: int
) -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 1.0)
    drain(link)
    assert ended(
        CloseCode.INSUFFICIENT_STATE,
        link.offer_read(epoch, floor, policy_floor, top, [entry(first, ts=ts)], 2.0),
    )


def test_an_old_number_on_a_new_entry_is_from_another_log() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 1.0)
    assert link.offer_entries([entry(2)], 1.0) == []
    assert ended(CloseCode.INSUFFICIENT_STATE, link.offer_entries([entry(3, ts=5000)], 1.0))


def test_in_doubt_hints_wait_until_a_read_has_shown_the_last_one_again() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 1.0)
    drain(link)
    assert link.wanted() is None
    link.verify_log()
    assert link.offer_entries([entry(4)], 1.0) == []
    assert not link.has_output
    wanted = link.wanted()
    assert wanted is not None
    assert wanted.from_seq == 3
    assert link.offer_read(EPOCH, 0, 0, 4, entries(3, 4), 1.0) == []
    assert seqs(drain(link)) == [4]
    assert link.wanted() is None
    link.verify_log()
    read = link.offer_read(EPOCH, 0, 0, 5, [entry(4, ts=9000), entry(5, ts=9001)], 1.0)
    assert ended(CloseCode.INSUFFICIENT_STATE, read)


def test_a_hint_that_comes_in_doubt_is_read_afterwards() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 1.0)
    drain(link)
    link.verify_log()
    assert link.wanted() is not None
    link.offer_entries([entry(4)], 1.0)
    link.offer_read(EPOCH, 0, 0, 3, [entry(3)], 1.0)  # what the log was when it was asked
    assert link.wanted() == Wanted(4, 1, 256 * 1024 - link.pending_bytes)


def test_in_doubt_the_last_one_is_read_again_although_the_window_is_full() -> None:
    link = open_server(LinkConfig(window_messages=3, window_bytes=10_000))
    link.offer_entries([entry(1), entry(2), entry(3, size=9800)], 1.0)
    link.verify_log()
    assert link.wanted() == Wanted(3, 1, 1024)


def test_a_read_that_was_overtaken_by_a_hint_does_not_hide_it_and_one_that_was_not_is_believed() -> None:
    link = open_server()
    link.note_top(5)
    assert link.wanted() == Wanted(1, 5, 256 * 1024)
    link.note_top(8)
    link.offer_read(EPOCH, 0, 0, 5, entries(1, 5), 1.0)
    assert link.wanted() == Wanted(6, 3, 256 * 1024 - link.pending_bytes)
    link.offer_read(EPOCH, 0, 0, 5, [], 1.0)
    assert link.top == 5
    assert link.wanted() is None


def test_in_doubt_the_floor_tells_when_all_is_acknowledged() -> None:
    for floor_ts, state in ((1003, "open"), (7777, "closed")):
        link = open_server()
        link.offer_entries(entries(1, 3), 1.0)
        link.receive(sent(Ack(3)), 1.0)
        link.verify_log()
        link.offer_read(EPOCH, 3, 0, 3, [], 1.0, floor_ts=floor_ts)
        assert link.state == state


@pytest.mark.parametrize("ts", [5, 1003])
def test_a_hint_not_younger_than_what_was_sent_is_held_back_until_the_log_decides(ts: int) -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 1.0)
    link.offer_entries([entry(4, ts=ts)], 1.0)
    assert seqs(drain(link)) == [1, 2, 3]
    assert link.wanted() == Wanted(4, 1, 256 * 1024 - link.pending_bytes)


# ---- acks


def test_o9_an_ack_beyond_what_was_sent_is_a_bad_frame() -> None:
    link = open_server(top=10)
    link.offer_entries(entries(1, 3), 1.0)
    assert ended(CloseCode.BAD_FRAME, link.receive(sent(Ack(4)), 1.0))
    link = open_server()
    assert ended(CloseCode.BAD_FRAME, link.receive(sent(Pong(1, seq=1)), 1.0))


def test_an_ack_is_told_once_and_never_goes_back() -> None:
    link = open_server()
    link.offer_entries(entries(1, 5), 1.0)
    assert link.receive(sent(Ack(3), Ack(2), Ack(3), Ack(3, rid_floor=7), Pong(1, 4)), 1.0) == [
        Acked(3, 0, 1003),
        Acked(3, 7, 1003),
        Acked(4, 7, 1004),
    ]


# ---- output


def test_a_flush_is_one_chunk_of_at_most_64_messages_or_16_kib() -> None:
    link = open_server()
    link.offer_entries(entries(1, 100), 1.0)
    (first,), (second,) = link.take_output(), link.take_output()
    assert len(PROTOBUF.decoder(10**6).feed(first)) == 64
    assert len(PROTOBUF.decoder(10**6).feed(second)) == 36
    assert link.take_output() == []
    link = open_server()
    link.offer_entries(entries(1, 10, size=5000), 1.0)
    sizes = []
    while link.has_output:
        (chunk,) = link.take_output()
        sizes.append(len(PROTOBUF.decoder(10**6).feed(chunk)))
    assert sizes == [3, 3, 3, 1]


def test_o12_control_frames_are_outside_the_numbers_and_need_no_ack() -> None:
    link = open_server()
    link.accept(1, 1.0)
    link.reject(2, 429, 1.0, retry_after_ms=5, error="slow down")
    link.go_away(1000, "drain", 1.0, hint="elsewhere")
    frames = drain(link)
    assert frames == [Accept(1), Reject(2, 429, True, 5, "slow down"), GoAway(1000, "drain", "elsewhere")]
    assert link.volatile("t", b"1", 1.0)
    assert not link.volatile("t", b"2", 1.0)
    assert drain(link) == [Volatile("t", b"1")]
    assert not link.volatile("t", b"3", 1.0, unsent=1)
    assert link.get_queue_stats()["last_sent_seq"] == 0


def test_a_long_error_is_cut_to_what_a_frame_may_carry() -> None:
    link = open_server()
    link.reject(1, 500, 1.0, error="x" * 5000)
    assert drain(link) == [Reject(1, 500, False, 0, "x" * 1000)]


# ---- time


def test_a_ping_leaves_only_if_nothing_was_sent_and_carries_the_top() -> None:
    link = open_server(top=7)
    assert link.deadline() == 25.0
    assert link.tick(24.9) == []
    assert not link.has_output
    link.tick(25.0)
    assert drain(link) == [Ping(1, 7)]
    link.receive(sent(Pong(1)), 25.2)
    assert link.rtt == pytest.approx(0.2)
    link.accept(1, 40.0)
    drain(link)
    link.receive(sent(Join("g")), 40.0)
    link.tick(64.9)
    assert not link.has_output
    link.tick(65.0)
    assert drain(link) == [Ping(2, 7)]


def test_only_the_pong_to_the_ping_that_was_sent_gives_the_round_trip_time() -> None:
    link = open_server()
    link.tick(25.0)
    link.receive(sent(Pong(7)), 25.1)
    assert link.rtt is None
    link.tick(51.0)
    link.receive(sent(Pong(1)), 51.3)  # the answer to the ping before, at last
    assert link.rtt is None
    link.tick(77.0)
    link.receive(sent(Pong(3)), 77.5)
    assert link.rtt == pytest.approx(0.5)


def test_o12_a_half_open_connection_is_found_even_while_messages_leave() -> None:
    link = open_server()
    for second in range(25):
        link.offer_entries([entry(second + 1)], float(second))
    link.tick(25.0)
    assert isinstance(drain(link)[-1], Ping)
    assert ended(CloseCode.NO_PONG, link.tick(35.0))


def test_no_pong_ends_it_and_any_frame_counts_as_one_but_half_a_frame_does_not() -> None:
    link = open_server()
    link.tick(25.0)
    assert link.deadline() == 35.0
    link.receive(sent(Join("g")), 30.0)
    assert link.tick(36.0) == []
    link = open_server()
    link.tick(25.0)
    link.receive(sent(Join("g"))[:-1], 30.0)
    assert ended(CloseCode.NO_PONG, link.tick(35.0))


def test_jitter_moves_the_heartbeat() -> None:
    link = ServerLink("protobuf", LinkConfig(), 0.0, jitter=0.1)
    link.receive(sent(Hello()), 0.0)
    link.welcome(Welcome("p001-s", "k", "new"), (), 0.0)
    assert link.deadline() == pytest.approx(27.5)


def test_o5_a_slow_reader_gets_no_copies_while_the_transport_holds_unsent_bytes() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 0.0)
    drain(link)
    link.receive(sent(Join("g")), 15.0)
    link.tick(16.0, unsent=5000)
    assert seqs(drain(link)) == []
    link.tick(26.0, unsent=0)
    assert seqs(drain(link)) == [1, 2, 3]


def test_o5_what_has_not_left_yet_is_not_sent_again() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 0.0)
    link.receive(sent(Join("g")), 15.0)
    link.tick(16.0, unsent=0)
    assert seqs(drain(link)) == [1, 2, 3]


@pytest.mark.parametrize(("slow_close", "copies", "end"), [(60.0, 3, 80.0), (300.0, 3, 80.0)])
def test_o5_what_is_never_acknowledged_ends_resumable_and_nothing_is_forgotten_silently(
    slow_close: float, copies: int, end: float
) -> None:
    link = open_server(LinkConfig(slow_close=slow_close))
    link.offer_entries(entries(1, 2), 0.0)
    drain(link)
    repeated: list[int] = []
    events: list[ServerEvent] = []
    now = 0.0
    while not events or not isinstance(events[-1], Ended):
        now += 1.0
        if now % 5 == 0:
            link.receive(sent(Join("g")), now)
        events += link.tick(now)
        repeated += seqs(drain(link))
    assert repeated == [1, 2] * copies
    assert ended(CloseCode.SLOW_CONSUMER, events)
    assert now == end


def test_a_client_that_makes_no_progress_is_reported_then_closed_one_that_does_is_not() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 0.0)
    seen: list[ServerEvent] = []
    for second in range(1, 61):
        if second % 5 == 0:
            link.receive(sent(Pong(0)), float(second))
        seen += link.tick(float(second), unsent=1)
    assert [type(event) for event in seen] == [SlowConsumer, Ended]
    assert ended(CloseCode.SLOW_CONSUMER, seen)
    link = open_server()
    link.offer_entries(entries(1, 30), 0.0)
    for second in range(1, 29):
        link.receive(sent(Ack(second)), float(second))
        assert link.tick(float(second), unsent=1) == []


def test_the_time_before_a_message_does_not_count_against_the_client() -> None:
    link = open_server()
    link.receive(sent(Join("g")), 99.0)
    link.offer_entries([entry(1)], 100.0)
    assert link.tick(101.0) == []
    assert link.deadline() > 101.0


def test_a_client_that_made_progress_is_reported_anew_when_it_stops_again() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 0.0)
    reports = []
    for second in range(1, 80):
        if second % 5 == 0:
            link.receive(sent(Pong(0, 2 if second >= 40 else 0)), float(second))
        reports += [second for event in link.tick(float(second), unsent=1) if isinstance(event, SlowConsumer)]
    assert len(reports) == 2
    assert reports[0] < 40 < reports[1]


def test_what_waited_too_long_for_its_turn_is_let_go_and_wanted_again() -> None:
    link = open_server()
    link.offer_entries([entry(3)], 0.0)
    assert link.wanted() == Wanted(1, 2, 256 * 1024)
    link.receive(sent(Join("g")), 29.0)
    link.tick(31.0)
    assert link.wanted() == Wanted(1, 3, 256 * 1024)


def test_a_token_is_asked_for_ahead_and_ends_the_connection_at_its_time() -> None:
    link = open_server()
    link.token_expires(100.0)
    link.receive(sent(Join("g")), 39.0)
    link.accept(1, 39.0)
    drain(link)
    assert link.deadline() == 40.0
    link.tick(40.0)
    assert drain(link) == [Ping(1, 0, False, 60_000)]
    link.receive(sent(Pong(1)), 41.0)
    link.token_expires(200.0)
    link.accept(2, 101.0)
    assert link.tick(101.0) == []
    link.receive(sent(Join("g")), 139.0)
    drain(link)
    link.tick(140.0)
    assert drain(link) == [Ping(3, 0, False, 60_000)], "of the new token the client is told in time too"
    link.receive(sent(Pong(3)), 141.0)
    assert link.tick(199.0) == []
    assert ended(CloseCode.TOKEN_EXPIRED, link.tick(200.0))


def test_a_token_is_asked_for_once() -> None:
    link = open_server()
    link.token_expires(100.0)
    for now in (40.0, 41.0, 42.0):
        link.receive(sent(Join("g")), now)
        link.tick(now)
    assert drain(link) == [Ping(1, 0, False, 60_000)]


def test_asking_for_a_token_gives_no_more_time_to_answer_an_earlier_ping() -> None:
    link = open_server()
    link.token_expires(90.0)
    link.tick(25.0)
    link.tick(30.0)
    assert len(drain(link)) == 2
    assert ended(CloseCode.NO_PONG, link.tick(35.0))


def test_the_time_to_look_for_a_slow_reader_is_a_time_to_tick() -> None:
    link = open_server(LinkConfig(slow_warn=2.0, slow_close=4.0, cleanup_interval=20.0, max_retries=0))
    link.offer_entries(entries(1, 1), 1.0)
    assert link.deadline() == 3.0
    assert link.tick(3.0) == [SlowConsumer(2.0)]
    assert link.deadline() == 5.0


def test_pings_say_that_the_store_is_out_of_reach() -> None:
    link = open_server()
    link.degraded(True)
    link.tick(25.0)
    assert drain(link) == [Ping(1, 0, True)]


def test_deadline_is_never_later_than_what_tick_does_next() -> None:
    link = open_server()
    link.offer_entries(entries(1, 3), 0.0)
    drain(link)
    now = 0.0
    for _ in range(30):
        due = link.deadline()
        assert due > now or link.state == "closed"
        if link.state == "closed":
            break
        assert link.tick(min(due - 0.001, due)) == []
        assert not link.has_output
        now = due
        link.tick(now)
        drain(link)
    assert link.state == "closed"


# ---- the end


def test_the_last_words_leave_whole_and_nothing_after_them() -> None:
    link = open_server()
    link.offer_entries(entries(1, 100), 1.0)
    events = link.close(CloseCode.GOING_AWAY, "drain", 1.0, retry_after_ms=500)
    assert events == [Ended(4000, "drain", 500)]
    frames = PROTOBUF.decoder(10**6).feed(b"".join(link.take_output()))
    assert frames[-1] == Close(4000, "drain", 500)
    assert seqs(frames) == list(range(1, 101))
    link.offer_entries(entries(101, 102), 1.0)
    link.accept(1, 1.0)
    assert not link.has_output
    assert link.close(CloseCode.INTERNAL, "", 1.0) == []
    assert link.get_queue_stats()["stopped"]


def test_json_speaks_the_same() -> None:
    link = ServerLink("json", LinkConfig(), 0.0, whole_messages=True)
    assert link.receive('{"t":"hello","version":1,"token":"ü"}\n', 0.0) == [Hello(token="ü")]
    link.welcome(Welcome("p001-s", "k", "new", cursor=Cursor(EPOCH, 0, 0), top=2), entries(1, 2), 0.0)
    (chunk,) = link.take_output()
    assert [line[:11] for line in chunk.splitlines()] == [b'{"t":"welco', b'{"t":"msg",', b'{"t":"msg",']
    assert link.receive('{"t":"ack","seq":2}', 0.0) == [Acked(2, 0, 1002)]
    assert ended(CloseCode.BAD_FRAME, link.receive("{", 0.0))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("heartbeat", 0), ("window_messages", 0), ("max_retries", -1), ("pong", "10"), ("max_frame", 2**22)],
)
def test_settings_are_checked(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting):
        LinkConfig(**{setting: value})  # type: ignore[arg-type]


def test_settings_may_be_as_large_as_is_said() -> None:
    config = LinkConfig(max_frame=MAX_FRAME_FROM_SERVER, slow_warn=20.0, slow_close=20.0, max_retries=0)
    assert (config.max_frame, config.slow_close, config.max_retries) == (MAX_FRAME_FROM_SERVER, 20.0, 0)
    with pytest.raises(ConfigError, match=f"max_frame: got {MAX_FRAME_FROM_SERVER + 1}, expected at most"):
        LinkConfig(max_frame=MAX_FRAME_FROM_SERVER + 1)
    with pytest.raises(ConfigError, match="slow_close"):
        LinkConfig(slow_warn=20.0, slow_close=19.9)
