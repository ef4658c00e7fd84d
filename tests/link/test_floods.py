"""What a client may send before the welcome, and how much of everything after it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.link.support import EPOCH, entries, open_server, sent
from veredus.errors import ConfigError
from veredus.link.server import MAX_UNREAD_ANSWERS
from veredus.link.session import Acked, Ended, LinkConfig, ServerEvent, ServerLink
from veredus.model.delivery import Cursor
from veredus.model.frames import Ack, Auth, Cancel, CloseCode, Frame, Hello, Join, Leave, Pong, Request, Welcome

UNKNOWN = b"\x06\x82\x08\x03abc"  # a frame of type 128, which only newer versions know


def ended(code: CloseCode, events: Sequence[ServerEvent]) -> bool:
    last = events[-1]
    return isinstance(last, Ended) and last.code == code


def new_link() -> ServerLink:
    return ServerLink("protobuf", LinkConfig(), 0.0)


def json_link(config: LinkConfig | None = None) -> ServerLink:
    return ServerLink("json", config or LinkConfig(), 0.0, whole_messages=True)


def open_json(config: LinkConfig | None = None) -> ServerLink:
    link = json_link(config)
    link.receive(b'{"t":"hello","version":1}\n', 0.0)
    link.welcome(Welcome("p001-s", "k", "new", cursor=Cursor(EPOCH, 0, 0)), (), 0.0)
    return link


@pytest.mark.parametrize(
    "data",
    [
        b'{"t":"x-new"}',
        b"\n",
        b" ",
        b"",
        b'\n{"t":"hello","version":1}',
        b'{"t":"hello","version":1}\n{"t":"x-new"}',
        b'{"t":"hello","version":1}\n\n',
        b'{"t":"ack"}\n' * 2000,
    ],
)
def test_before_the_welcome_nothing_but_one_hello_is_looked_at(data: bytes) -> None:
    assert ended(CloseCode.BAD_FRAME, json_link().receive(data, 0.0))
    link = json_link()
    assert link.receive(b'{"t":"hello","version":1}\n', 0.0)
    assert ended(CloseCode.BAD_FRAME, link.receive(data, 0.0))


def test_of_what_comes_with_a_hello_nothing_is_decoded() -> None:
    (last,) = json_link().receive(b'{"t":"hello","version":1}\n' + b'{"t":"ack"}\n' * 100, 0.0)
    assert isinstance(last, Ended)
    assert last.reason == "more than 1 frames at once"


def test_a_stream_may_bring_nothing_but_a_hello_before_the_welcome() -> None:
    assert ended(CloseCode.BAD_FRAME, new_link().receive(UNKNOWN, 0.0))
    assert ended(CloseCode.BAD_FRAME, new_link().receive(sent(Hello()) + UNKNOWN, 0.0))


@pytest.mark.parametrize("data", [b'{"t":"x-new"}\n' * 10, b"\n" * 10, b" \n \n" * 5])
def test_what_is_ignored_counts_as_frames(data: bytes) -> None:
    link = open_json(LinkConfig(frame_rate=10.0, frame_burst=20))
    assert link.receive(data, 0.0) == []
    assert link.receive(data, 0.0) == []
    last = link.receive(data, 0.5)[-1]
    assert isinstance(last, Ended)
    assert (last.code, last.retry_after_ms) == (CloseCode.RATE_LIMITED, 1000)


def test_empty_messages_and_unknown_types_count_as_frames() -> None:
    link = open_json(LinkConfig(frame_rate=1.0, frame_burst=5))
    assert [link.receive(b"", 0.0) for _ in range(5)] == [[]] * 5
    assert ended(CloseCode.RATE_LIMITED, link.receive(b"", 0.0))
    binary = ServerLink("protobuf", LinkConfig(frame_rate=1.0, frame_burst=5), 0.0, whole_messages=True)
    binary.receive(sent(Hello()), 0.0)
    binary.welcome(Welcome("p001-s", "k", "new", cursor=Cursor(EPOCH, 0, 0)), (), 0.0)
    assert [binary.receive(b"", 0.0) for _ in range(5)] == [[]] * 5
    assert ended(CloseCode.RATE_LIMITED, binary.receive(b"", 0.0))
    stream = open_server(LinkConfig(frame_rate=1.0, frame_burst=5))
    assert stream.receive(UNKNOWN * 5, 0.0) == []
    assert ended(CloseCode.RATE_LIMITED, stream.receive(UNKNOWN, 0.0))


@pytest.mark.parametrize("frame", [Request(1, "a"), Cancel(1), Join("g"), Leave("g"), Auth("t")])
def test_every_frame_that_asks_for_something_counts(frame: Frame) -> None:
    link = open_server(LinkConfig(frame_rate=1.0, frame_burst=5))
    assert link.receive(sent(*[frame] * 5), 0.0) == [frame] * 5
    assert ended(CloseCode.RATE_LIMITED, link.receive(sent(frame), 0.5))


@pytest.mark.parametrize("frame", [Ack(0), Ack(2), Pong(1), Pong(1, 2)])
def test_acks_and_pongs_that_say_nothing_new_have_a_bucket_of_their_own(frame: Frame) -> None:
    link = open_server(LinkConfig(frame_rate=1.0, frame_burst=1, ack_rate=1.0, ack_burst=5))
    link.offer_entries(entries(1, 2), 0.0)
    link.receive(sent(Ack(2)), 0.0)
    assert link.receive(sent(*[frame] * 5), 0.0) == []
    assert ended(CloseCode.RATE_LIMITED, link.receive(sent(frame), 0.5))


def test_acks_that_say_something_new_and_answers_to_pings_are_free() -> None:
    link = open_server(LinkConfig(ack_rate=1.0, ack_burst=1))
    for seq in range(1, 201):
        link.offer_entries(entries(seq, seq), 0.0)
        assert link.receive(sent(Ack(seq)), 0.0) == [Acked(seq, 0, 1000 + seq)]
    for floor in range(1, 100):
        assert link.receive(sent(Ack(200, floor)), 0.0) == [Acked(200, floor, 1200)]
    for ping in range(1, 10):
        link.tick(ping * 30.0)
        assert link.receive(sent(Pong(ping, 200)), ping * 30.0) == []
    assert link.state == "open"


def test_too_many_frames_in_one_message_are_too_large_on_a_stream_they_are_too_many() -> None:
    config = LinkConfig(max_frames=10)
    assert ended(CloseCode.TOO_LARGE, open_json(config).receive(b'{"t":"ack"}\n' * 11, 0.0))
    whole = ServerLink("protobuf", config, 0.0, whole_messages=True)
    whole.receive(sent(Hello()), 0.0)
    whole.welcome(Welcome("p001-s", "k", "new", cursor=Cursor(EPOCH, 0, 0)), (), 0.0)
    assert ended(CloseCode.TOO_LARGE, whole.receive(sent(*[Ack(0)] * 11), 0.0))
    assert ended(CloseCode.RATE_LIMITED, open_server(config).receive(sent(*[Ack(0)] * 11), 0.0))


def test_a_client_may_be_allowed_more_or_fewer_frames_than_others() -> None:
    link = open_server(LinkConfig(frame_burst=5))
    link.allow(1.0, 2.0, 0.0)
    assert ended(CloseCode.RATE_LIMITED, link.receive(sent(*[Join("g")] * 3), 0.0))


def test_a_client_may_leave_a_window_and_so_many_answers_unread() -> None:
    link = open_server(LinkConfig(window_messages=16))
    for rid in range(1, 16 + MAX_UNREAD_ANSWERS + 1):
        link.accept(rid, 0.0)
    assert link.receive(sent(Join("g")), 0.0) == [Join("g")]
    link.accept(9999, 0.0)
    assert ended(CloseCode.RATE_LIMITED, link.receive(sent(Join("g")), 0.0))


@pytest.mark.parametrize("name", ["frame_rate", "ack_rate"])
def test_a_rate_is_a_number_per_second(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*a number per second above 0"):
        LinkConfig(**{name: 0})
