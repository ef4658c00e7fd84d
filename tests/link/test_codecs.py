"""Frames to bytes and back: round trip, agreement of the encodings, limits, and bytes from hell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import veredus
from tests.link.frames import frames, value
from veredus.errors import ConfigError
from veredus.model.delivery import MAX_BODY
from veredus.model.frames import (
    FRAMES,
    MAX_NUMBER,
    Ack,
    CloseCode,
    Frame,
    FrameError,
    Hello,
    Kind,
    Message,
    Request,
    Type,
)
from veredus.wire.frame_json import NAMES
from veredus.wire.frames import codec, decode_stored, encode_stored
from veredus.wire.framing import with_length
from veredus.wire.gateway_schema import MESSAGES, message_class
from veredus.wire.varint import varint

PROTOBUF, JSON = codec("protobuf"), codec("json")
BOTH = pytest.mark.parametrize("encoding", ["protobuf", "json"])
HUGE = 2 * MAX_BODY
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def _one(encoding: str, data: bytes) -> Frame:
    (frame,) = codec(encoding).decoder(HUGE).feed(data)
    return frame


@calm
@given(frames)
def test_a_frame_survives_both_encodings_and_they_agree(frame: Frame) -> None:
    for encoding in ("protobuf", "json"):
        back = _one(encoding, codec(encoding).encode(frame))
        assert back == frame
        assert type(back) is type(frame)


@calm
@given(frames)
def test_the_envelope_is_the_frame_message_of_the_schema(frame: Frame) -> None:
    data = PROTOBUF.encode(frame)
    length = len(data) - len(varint(len(data)))
    while len(varint(length)) + length != len(data):
        length += 1
    record = message_class("Frame").FromString(data[len(data) - length :])
    assert record.WhichOneof("frame") == type(frame).__name__.lower()


@calm
@given(value(Message), st.integers(1, MAX_NUMBER), st.integers(1, MAX_NUMBER))
def test_a_tail_with_number_and_time_is_the_whole_message(message: Message, seq: int, ts: int) -> None:
    tail = encode_stored(message)
    whole = message._replace(seq=seq, ts=ts)
    assert decode_stored(tail) == message._replace(seq=0, ts=0)
    for encoding in ("protobuf", "json"):
        assert _one(encoding, codec(encoding).message_frame(seq, ts, tail)) == whole
    assert PROTOBUF.message_frame(seq, ts, tail) == PROTOBUF.encode(whole)


@pytest.mark.parametrize(
    "size", [0, 85, 86, 90, 100, 105, 106, 107, 126, 127, 128, 4000, 4094, 4096, 16_000, 16_370, 70_000]
)
def test_message_frame_at_every_width_of_its_lengths(size: int) -> None:
    message = Message(seq=7, ts=8, body=b"x" * size, encoding="raw")
    for around in range(-6, 7):
        message = message._replace(body=b"x" * max(0, size + around))
        assert PROTOBUF.message_frame(7, 8, encode_stored(message)) == PROTOBUF.encode(message)


@calm
@given(st.lists(frames, max_size=6), st.data())
def test_however_the_stream_is_cut_the_frames_are_the_same(expected: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(PROTOBUF.encode(frame) for frame in expected)
    decoder = PROTOBUF.decoder(HUGE)
    seen: list[Frame] = []
    while stream:
        cut = data.draw(st.integers(1, max(1, min(len(stream), 40))))
        seen += decoder.feed(stream[:cut])
        stream = stream[cut:]
    decoder.end_of_message()
    assert seen == expected


@calm
@given(st.lists(frames, min_size=1, max_size=4))
def test_json_frames_stand_on_one_line_each(expected: list[Frame]) -> None:
    text = b"".join(JSON.encode(frame) for frame in expected)
    assert text.count(b"\n") == len(expected)
    assert [json.loads(line)["t"] for line in text.splitlines() if line] == [
        NAMES[next(number for number, cls in FRAMES.items() if cls is type(frame))] for frame in expected
    ]
    assert JSON.decoder(HUGE).feed(text) == expected


def test_a_json_body_with_line_breaks_is_put_on_one_line_and_what_is_no_json_travels_as_bytes() -> None:
    pretty = encode_stored(Message(body=b'{\n  "a": [1,\r\n 2]\n}'))
    frame = JSON.message_frame(1, 1, pretty)
    assert frame.count(b"\n") == 1
    assert json.loads(frame)["body"] == {"a": [1, 2]}
    for broken in (b"{", b"\xff", b'"\xff"', b"1 2", b'"a\nb"', b"[" * 5000):
        frame = JSON.message_frame(1, 1, encode_stored(Message(body=broken)))
        assert "body" not in json.loads(frame)
        back = _one("json", frame)
        assert isinstance(back, Message)
        assert (back.body, back.encoding) == (broken, "raw")


# ---- what must not pass


@calm
@given(st.binary(max_size=200))
@example(b"\x00")
@example(b"\xff\xff\xff\xff\xff")
@example(b"\x02\x1a\x00")
def test_arbitrary_bytes_raise_nothing_but_frame_errors(data: bytes) -> None:
    for encoding in ("protobuf", "json"):
        decoder = codec(encoding).decoder(4096, 64)
        codes = {CloseCode.BAD_FRAME}
        try:
            decoder.feed(data)
            decoder.end_of_message()
        except FrameError as error:
            codes.add(error.code)
        assert codes <= {CloseCode.BAD_FRAME, CloseCode.TOO_LARGE, CloseCode.RATE_LIMITED}


@calm
@given(frames, st.data())
def test_truncated_and_mutated_frames_raise_nothing_but_frame_errors(frame: Frame, data: st.DataObject) -> None:
    for encoding in ("protobuf", "json"):
        whole = bytearray(codec(encoding).encode(frame))
        for _ in range(data.draw(st.integers(0, 3))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(whole)))
        decoder = codec(encoding).decoder(HUGE, 64)
        try:
            decoder.feed(bytes(whole[:cut]))
            decoder.end_of_message()
        except FrameError:
            pass


@calm
@given(frames, st.integers(1, 400))
def test_a_cut_off_frame_is_refused_at_the_end_of_a_message(frame: Frame, cut: int) -> None:
    data = PROTOBUF.encode(frame)
    if cut >= len(data):
        return
    decoder = PROTOBUF.decoder(HUGE)
    assert decoder.feed(data[:-cut]) == []
    with pytest.raises(FrameError, match="cut off"):
        decoder.end_of_message()


def _envelope(number: int, body: bytes = b"") -> bytes:
    return with_length(varint(number << 3 | 2) + varint(len(body)) + body)


def test_unknown_types_from_128_are_ignored_and_below_refused() -> None:
    known = PROTOBUF.encode(Ack(1))
    assert PROTOBUF.decoder(100).feed(_envelope(128, b"\x08\x01") + known + _envelope(5000)) == [Ack(1)]
    for number in (10, 63, 73, 127):
        with pytest.raises(FrameError) as caught:
            PROTOBUF.decoder(100).feed(_envelope(number))
        assert caught.value.code == CloseCode.BAD_FRAME
    assert JSON.decoder(100).feed(b'{"t":"x-later","a":1}\n{"t":"ack","seq":1}') == [Ack(1)]
    with pytest.raises(FrameError, match="later"):
        JSON.decoder(100).feed(b'{"t":"later"}')


def test_unknown_trailing_fields_are_ignored() -> None:
    body = b"\x08\x05" + varint(99 << 3 | 2) + b"\x03abc" + varint(100 << 3) + b"\x07"
    assert PROTOBUF.decoder(100).feed(_envelope(Type.ACK, body)) == [Ack(5)]
    assert JSON.decoder(100).feed(b'{"t":"ack","seq":5,"colour":"red"}') == [Ack(5)]


@BOTH
@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (Request(0, "a"), "rid"),
        (Request(MAX_NUMBER + 1, "a"), "rid"),
        (Request(1, ""), "action"),
        (Request(1, "a" * 257), "action"),
        (Hello(token="t" * 16_385), "token"),
        (Hello(client="c" * 257), "client"),
        (Ack(MAX_NUMBER + 1), "seq"),
        (FRAMES[Type.JOIN]("g" * 257), "group"),  # type: ignore[call-arg,arg-type]
        (FRAMES[Type.GAP](5, 4), "5 to 4"),  # type: ignore[call-arg,arg-type]
        (FRAMES[Type.BYE](10_001), "code"),  # type: ignore[call-arg,arg-type]
        (Message(1, 1, metadata={str(i): "" for i in range(65)}), "metadata"),
        (Message(1, 1, metadata={"k" * 129: ""}), "metadata"),
        (Message(1, 1, metadata={"k": "v" * 4097}), "metadata"),
        (Message(1, 1, title="t" * 1025), "title"),
        (Message(1, 1, sync_hint=3), "sync_hint"),
        (Message(1, 1, body=b"1" * (MAX_BODY + 1), encoding="raw"), "body"),
    ],
)
def test_every_field_has_its_limit(encoding: str, frame: Frame, field: str) -> None:
    with pytest.raises(FrameError, match=field):
        codec(encoding).decoder(4 * MAX_BODY).feed(codec(encoding).encode(frame))


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"ack","seq":"5"}',
        b'{"t":"ack","seq":-1}',
        b'{"t":"ack","seq":1.5}',
        b'{"t":"ack","seq":true}',
        b'{"t":"ack","seq":9007199254740992}',
        b'{"t":"request","rid":1,"action":"a","body":1,"body64":"MQ=="}',
        b'{"t":"request","rid":1,"action":"a","body64":"%%"}',
        b'{"t":"request","action":"a"}',
        b'{"t":"msg","seq":1,"ts":1,"kind":"poem"}',
        b'{"t":"msg","seq":1,"ts":1}',
        b'{"seq":5}',
        b"[1,2]",
        b"null",
        b"{",
        b'{"t":"auth","token":"\xff"}',
        b'{"t":"request","rid":1,"action":"a","body":"\xff"}',
        b'{"t":"request","rid":1,"action":"a","body":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_json_that_breaks_the_schema_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        JSON.decoder(64 * 1024).feed(line)
    assert caught.value.code == CloseCode.BAD_FRAME


def test_s9_a_length_beyond_the_limit_is_refused_before_its_bytes_come_and_nothing_is_set_aside_for_it() -> None:
    decoder = PROTOBUF.decoder(64 * 1024)
    with pytest.raises(FrameError) as caught:
        decoder.feed(varint(64 * 1024 + 1))
    assert caught.value.code == CloseCode.TOO_LARGE
    decoder = PROTOBUF.decoder(64 * 1024)
    assert decoder.feed(varint(64 * 1024)) == []
    assert decoder._splitter.held == 3  # type: ignore[attr-defined]
    with pytest.raises(FrameError, match="four bytes"):
        PROTOBUF.decoder(HUGE).feed(b"\xff\xff\xff\xff\x01")
    with pytest.raises(FrameError) as caught:
        JSON.decoder(100).feed(b'{"t":"auth","token":"' + b"a" * 100 + b'"}')
    assert caught.value.code == CloseCode.TOO_LARGE


@BOTH
def test_too_many_frames_at_once_are_refused(encoding: str) -> None:
    ack = codec(encoding).encode(Ack(1))
    assert len(codec(encoding).decoder(100, 64).feed(ack * 64)) == 64
    with pytest.raises(FrameError) as caught:
        codec(encoding).decoder(100, 64).feed(ack * 65)
    assert caught.value.code == CloseCode.RATE_LIMITED


def test_a_frame_of_no_bytes_and_one_that_lies_about_its_length_are_refused() -> None:
    for data in (b"\x00", b"\x01\x1a", b"\x03\x1a\x05\x08", b"\x03\x18\x01\x00", b"\x02\x02\x00"):
        with pytest.raises(FrameError):
            PROTOBUF.decoder(100).feed(data)


# ---- producers


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message(body=b"1" * (MAX_BODY + 1)), "body"),
        (Message(title="t" * 1025), "title"),
        (Message(rid=MAX_NUMBER + 1), "rid"),
        (Message(metadata={"k": "v" * 5000}), "metadata"),
        (Message(encoding="xml"), "encoding"),
        (Message(kind=9), "kind"),  # type: ignore[arg-type]
    ],
)
def test_a_producer_is_told_which_field_is_wrong(message: Message, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}"):
        encode_stored(message)


def test_text_that_is_no_unicode_is_cleaned_not_refused() -> None:
    tail = encode_stored(Message(title="a\ud800b", metadata={"k\ud800": "v"}))
    assert decode_stored(tail).title == "a?b"
    assert decode_stored(tail).metadata == {"k?": "v"}


def test_kinds_are_numbered_from_one() -> None:
    with pytest.raises(FrameError, match="kind"):
        PROTOBUF.decoder(100).feed(_envelope(Type.MESSAGE, b"\x09" + b"\x01" + b"\0" * 7))
    assert [int(kind) for kind in Kind] == [1, 2, 3, 4, 5, 6]


# ---- the schema in two places


def _proto() -> dict[str, dict[str, tuple[int, str]]]:
    text = (Path(veredus.__file__).parent / "wire/gateway.proto").read_text()
    text = re.sub(r"//.*", "", text)
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    for name, body in re.findall(r"(?:message|enum) (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text):
        fields = re.findall(r"^\s*(?:((?:repeated )?\w+(?:<[^>]*>)?)\s+)?(\w+) = (\d+);", body, re.MULTILINE)
        messages[name] = {field: (int(number), kind) for kind, field, number in fields}
    return messages


def test_gateway_proto_and_the_schema_say_the_same() -> None:
    proto = _proto()
    frame: dict[str, Any] = proto.pop("Frame")
    kinds = proto.pop("Kind")
    assert proto == {
        name: {field: (spec.number, spec.kind) for field, spec in fields.items()} for name, fields in MESSAGES.items()
    }
    assert frame == {cls.__name__.lower(): (int(number), cls.__name__) for number, cls in FRAMES.items()}
    assert {name: number for name, (number, _) in kinds.items()} == {
        "KIND_UNSPECIFIED": 0,
        **{f"KIND_{kind.name}": int(kind) for kind in Kind},
    }
