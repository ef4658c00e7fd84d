"""TaskMessage: the bytes are Asynq's, and everything comes back from them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import golden
from veredus.model.message import TaskMessage
from veredus.wire import messages
from veredus.wire.messages import UndecodableMessage, as_dict, clean, decode_task, encode_completed, encode_task

VECTORS = golden.load("vectors")["task_message"]
CONTRACT = [
    (
        TaskMessage(
            type="email:send",
            payload=b'{"user_id":42}',
            id="6f1c3d2e-0b7a-4c58-9e1f-2a3b4c5d6e7f",
            queue="default",
            retry=25,
            timeout=1800,
        ),
        "0a0a656d61696c3a73656e64120e7b22757365725f6964223a34327d1a2436663163336432652d306237612d346335382d3965"
        "31662d326133623463356436653766220764656661756c74281940880e",
    ),
    (
        TaskMessage(
            type="email:send",
            payload=b'{"user_id":42}',
            id="id-1",
            queue="critical",
            retry=3,
            retried=2,
            error_msg="boom",
            timeout=30,
            deadline=1700003600,
            unique_key="asynq:{critical}:unique:email:send:1181f89307fa271072c095747d5813cc",
            last_failed_at=1700000100,
            retention=3600,
            completed_at=1700000200,
            group_key="g1",
            headers={"trace-id": "abc"},
        ),
        "0a0a656d61696c3a73656e64120e7b22757365725f6964223a34327d1a0469642d312208637269746963616c280330023a0462"
        "6f6f6d401e4890fecfaa0652436173796e713a7b637269746963616c7d3a756e697175653a656d61696c3a73656e643a313138"
        "316638393330376661323731303732633039353734376435383133636358e4e2cfaa0660901c68c8e3cfaa06720267317a0f0a"
        "0874726163652d69641203616263",
    ),
    (
        TaskMessage(type="t", id="a", queue="q", timeout=-5, deadline=-1),
        "0a01741a016122017140fbffffffffffffffff0148ffffffffffffffffff01",
    ),
]


def built(fields: dict[str, Any]) -> TaskMessage:
    return TaskMessage(**{**fields, "payload": golden.raw(fields["payload"]), "headers": fields["headers"] or {}})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_gos_bytes(vector: dict[str, Any]) -> None:
    assert encode_task(built(vector["fields"])) == base64.b64decode(vector["encoded_b64"])


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["name"] != "empty"], ids=lambda vector: vector["name"])
def test_gos_bytes_read_back(vector: dict[str, Any]) -> None:
    assert decode_task(base64.b64decode(vector["encoded_b64"])) == built(vector["fields"])


@pytest.mark.parametrize(("message", "encoded"), CONTRACT)
def test_the_vectors_of_the_contract(message: TaskMessage, encoded: str) -> None:
    assert encode_task(message).hex() == encoded
    assert decode_task(bytes.fromhex(encoded)) == message


def stored_messages() -> list[tuple[str, bytes]]:
    found = []
    for scenario in golden.scenarios():
        for key in golden.load(scenario)["redis"]["keys"]:
            for field in key.get("fields", []):
                if field["field"] == "msg":
                    found.append((f"{scenario} {key['key']}", golden.raw(field)))
    assert len(found) > 50
    return found


def test_every_message_that_go_stored_is_written_again_byte_for_byte() -> None:
    for where, data in stored_messages():
        message = decode_task(data)
        again = encode_task(message)
        if len(message.headers) > 1:
            assert as_dict("TaskMessage", again) == as_dict("TaskMessage", data), where
        else:
            assert again == data, where


def test_several_headers_are_written_in_a_fixed_order() -> None:
    one = TaskMessage(type="t", id="1", queue="q", headers={"b": "2", "a": "1", "c": "3"})
    other = TaskMessage(type="t", id="1", queue="q", headers={"c": "3", "a": "1", "b": "2"})
    assert encode_task(one) == encode_task(other)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"not protobuf",
        b"\x0a\x05ab",
        b"\x0a\x01\xff\x1a\x011",
        b'{"type": "t"}',
        b"\x0a\x01t",
        b"\x1a\x01a",
    ],
)
def test_bytes_that_are_no_task_are_refused_with_one_error(data: bytes) -> None:
    with pytest.raises(UndecodableMessage, match="not a TaskMessage"):
        decode_task(data)


def test_fields_of_a_newer_asynq_do_not_make_a_message_unreadable() -> None:
    data = encode_task(TaskMessage(type="t", id="1", queue="q")) + b"\x82\x01\x03new"
    assert decode_task(data).id == "1"


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\udfff\ud800"])
def test_surrogates_in_an_error_do_not_lose_the_message(text: str) -> None:
    stored = decode_task(encode_task(TaskMessage(type="t", id="1", queue="q", error_msg=f"before {text} after")))
    assert stored.error_msg.startswith("before ")
    assert stored.error_msg.endswith(" after")
    stored.error_msg.encode()


def test_sound_text_is_not_touched() -> None:
    for text in ("", "plain", "日本語 🐎", "\x00"):
        assert clean(text) is text


TEXT = st.text(max_size=20)
NAME = st.text(min_size=1, max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.builds(
    TaskMessage,
    type=NAME,
    payload=st.binary(max_size=50),
    id=NAME,
    queue=TEXT,
    retry=INT32,
    retried=INT32,
    error_msg=TEXT,
    timeout=INT64,
    deadline=INT64,
    unique_key=TEXT,
    last_failed_at=INT64,
    retention=INT64,
    completed_at=INT64,
    group_key=TEXT,
    headers=st.dictionaries(TEXT, TEXT, max_size=4),
)


@settings(deadline=None)
@given(MESSAGES)
def test_whatever_goes_in_comes_out(message: TaskMessage) -> None:
    data = encode_task(message)
    assert decode_task(data) == message
    assert encode_task(decode_task(data)) == data


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_the_one_error(data: bytes) -> None:
    try:
        message = decode_task(data)
    except UndecodableMessage:
        return
    assert message.type
    assert message.id


def _protobuf_says(data: bytes) -> TaskMessage | None:
    try:
        return messages._decode(data)
    except UndecodableMessage:
        return None


@settings(deadline=None)
@given(MESSAGES, st.integers(0, 400), st.integers(0, 255), st.integers(0, 400), st.booleans())
def test_the_quick_way_agrees_with_protobuf(message: TaskMessage, at: int, byte: int, end: int, whole: bool) -> None:
    """Sound messages, cut ones and ones with a changed byte, seen before or not."""
    data = bytearray(encode_task(message))
    if not whole and at < len(data):
        data[at] = byte
        del data[end:]
    for _ in range(2):
        quick = messages._decode_alike(bytes(data))
        assert quick is None or quick == _protobuf_says(bytes(data))


def test_messages_that_are_alike_take_the_quick_way() -> None:
    for payload in (b"", b"{}", b"x" * 127, b"x" * 128, b"x" * 70_000):
        data = encode_task(TaskMessage(type="t", payload=payload, id="1", queue="q", retry=25))
        quick = messages._decode_alike(data)
        assert quick is not None
        assert quick == messages._decode(data)


def test_what_is_done_to_one_message_is_not_done_to_the_next() -> None:
    data = encode_task(TaskMessage(type="t", id="1", queue="q", retry=25, headers={"a": "b"}))
    message = decode_task(data)
    message.retried = 7
    message.headers["c"] = "d"  # type: ignore[index]
    assert (decode_task(data).retried, decode_task(data).headers) == (0, {"a": "b"})


def test_messages_with_headers_that_are_alike_take_the_quick_way() -> None:
    data = encode_task(TaskMessage(type="t", id="1", queue="q", headers={"veredus-parent": '["q", "a"]'}))
    assert messages._decode_alike(data) == messages._decode(data)


@settings(deadline=None)
@given(MESSAGES, MESSAGES, INT64, INT64)
def test_a_completed_message_has_the_same_bytes_however_it_is_encoded(
    message: TaskMessage, other: TaskMessage, retention: int, completed_at: int
) -> None:
    """Also for another message with the same end, and for one that has another id or queue than its bytes say."""
    for one in (message, replace(message, type=other.type, payload=other.payload, id=other.id)):
        data = encode_task(one)
        for task_id, queue in ((one.id, one.queue), (other.id, other.queue)):
            done = replace(one, id=task_id, queue=queue, retention=retention, completed_at=completed_at)
            for _ in range(2):
                assert encode_completed(data, done) == encode_task(done)


def test_the_ends_of_completed_messages_are_encoded_once_and_are_bounded() -> None:
    for number in range(3 * messages._MOST_SEEN):
        message = TaskMessage(type="t", id="1", queue="q", completed_at=number + 1)
        encode_completed(encode_task(replace(message, completed_at=0)), message)
        assert len(messages._completed) <= messages._MOST_SEEN
    before = dict(messages._completed)
    encode_completed(encode_task(replace(message, id="2", completed_at=0)), replace(message, id="2"))
    assert messages._completed == before


def test_what_was_seen_is_bounded() -> None:
    for number in range(3 * messages._MOST_SEEN):
        decode_task(encode_task(TaskMessage(type="t", id="1", queue="q", deadline=number + 1)))
    assert len(messages._seen) <= messages._MOST_SEEN
