"""How deep JSON may be nested: one limit for payloads, results and frames, the same on every Python."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veredus.errors import PayloadError
from veredus.model.frames import FrameError, Message, Request
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.model.nesting import MAX_DEPTH, too_deep
from veredus.wire.frame_json import JsonCodec, decode
from veredus.wire.frames import encode_stored
from veredus.wire.payload import encode_value, value_codec_for
from veredus.wire.results import result_decoder

AT_MOST, TOO_DEEP = MAX_DEPTH, MAX_DEPTH + 1


def lists(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def job(payload: bytes) -> Job:
    return Job(TaskMessage(type="t", id="1", queue="q", payload=payload))


def value(depth: int) -> Any:
    found: Any = []
    for _ in range(depth - 1):
        found = [found]
    return found


def measured(data: Any) -> int:
    if isinstance(data, dict):
        return 1 + max(map(measured, data.values()), default=0)
    return 1 + max(map(measured, data), default=0) if isinstance(data, list) else 0


odd_text = st.text(st.sampled_from('[]{}"\\\n a'), max_size=8)
values = st.recursive(
    odd_text | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_text, inner, max_size=4),
    max_leaves=30,
)


@given(values, st.integers(0, 6), st.sampled_from([None, 1]))
@example(["\\", '"', '\\"', "[[[[[[[["], 1, None)
@example({'\\"[[[[[': [[]]}, 2, None)
def test_brackets_count_where_they_are_structure_not_in_strings(found: Any, most: int, indent: int | None) -> None:
    assert too_deep(json.dumps(found, indent=indent).encode(), most) == (measured(found) > most)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert not too_deep(b"[" + b",".join([b'{"a":[{}]}'] * 5000) + b"]")


def test_a_payload_as_deep_as_allowed_travels_and_a_deeper_one_is_refused_on_both_sides() -> None:
    codec = value_codec_for(lambda message: None)
    assert encode_value(value(AT_MOST)) == lists(AT_MOST)
    assert codec.decode(job(lists(AT_MOST))) == ((value(AT_MOST),), {})
    with pytest.raises(PayloadError, match="cannot be written as JSON: nested more than 500 deep"):
        encode_value(value(TOO_DEEP))
    for depth in (TOO_DEEP, 3000, 100_000):
        with pytest.raises(PayloadError, match="payload does not fit: nested more than 500 deep"):
            codec.decode(job(lists(depth)))


def test_a_result_that_is_too_deep_does_not_fit_and_stays_bytes_where_anything_fits() -> None:
    def typed() -> list[Any]: ...  # type: ignore[empty-body]

    for function in (typed, None):
        assert result_decoder(function)(lists(AT_MOST)) == value(AT_MOST)
    with pytest.raises(PayloadError, match="the result does not fit: nested more than 500 deep"):
        result_decoder(typed)(lists(TOO_DEEP))
    assert result_decoder(None)(lists(TOO_DEEP)) == lists(TOO_DEEP)


@pytest.mark.parametrize("name", ["request", "x-newer"])
def test_a_frame_may_carry_a_body_as_deep_as_allowed(name: str) -> None:
    line = b'{"t":"%b","rid":1,"action":"a","body":%%b}' % name.encode()
    frame = decode(line % lists(AT_MOST))
    assert frame is None if name == "x-newer" else isinstance(frame, Request) and frame.body == lists(AT_MOST)
    for depth in (TOO_DEEP, 3000, 20_000):
        with pytest.raises(FrameError, match="a line: nested more than 501 deep"):
            decode(line % lists(depth))


def test_what_a_gateway_sends_can_be_read_by_its_client_however_deep_it_is() -> None:
    codec = JsonCodec()
    for depth, encoding in ((AT_MOST, "json"), (TOO_DEEP, "raw"), (3000, "raw")):
        (frame,) = codec.decoder(1024 * 1024).feed(codec.message_frame(1, 1, encode_stored(Message(body=lists(depth)))))
        assert isinstance(frame, Message)
        assert (frame.body, frame.encoding) == (lists(depth), encoding)
