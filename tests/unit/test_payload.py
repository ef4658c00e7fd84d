"""Arguments to payload bytes and back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError, PayloadError
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.wire.payload import codec_for, encode_value, value_codec_for


def job(payload: bytes) -> Job:
    return Job(TaskMessage(type="t", id="1", queue="q", payload=payload))


def three(a: Any, b: Any = 2, *, c: Any = 3) -> tuple[Any, Any, Any]:
    return a, b, c


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=8,
)


@given(JSON, st.lists(JSON, max_size=1), st.lists(JSON, max_size=1))
def test_what_is_sent_arrives(a: Any, b: list[Any], c: list[Any]) -> None:
    codec = codec_for(three)
    payload = codec.encode((a, *b), {"c": c[0]} if c else {})
    assert json.loads(payload) == {"a": a} | ({"b": b[0]} if b else {}) | ({"c": c[0]} if c else {})
    args, kwargs = codec.decode(job(payload))
    assert three(*args, **kwargs) == (a, b[0] if b else 2, c[0] if c else 3)


def test_arguments_stand_in_the_order_of_the_signature_and_only_those_given() -> None:
    codec = codec_for(three)
    assert codec.encode((), {"c": 1, "a": 2}) == b'{"a":2,"c":1}'
    assert codec.encode((1,), {}) == b'{"a":1}'


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "misses the argument 'a'"),
        ((), {"b": 1}, "misses the argument 'a'"),
        ((1, 2, 3), {}, "takes 2 positional arguments, got 3"),
        ((1, 2, 3), {"c": 4}, "takes 2 positional arguments, got 3"),
        ((1,), {"a": 2}, "got 'a' twice"),
        ((1,), {"d": 2}, "has no argument 'd'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_they_are_given(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(PayloadError, match=re.escape(f"three() {says}")):
        codec_for(three).encode(args, kwargs)
    assert codec_for(three).encode((1, 2), {}) == b'{"a":1,"b":2}'


def test_raw_bytes_travel_as_they_are_and_nothing_else_does() -> None:
    def handler(data: bytes) -> None: ...

    codec = codec_for(handler, "raw")
    for given_ in (b"\xff", bytearray(b"\xff"), memoryview(b"\xff")):
        assert codec.encode((given_,), {}) == b"\xff"
    assert codec.decode(job(b"\xff")) == ((b"\xff",), {})
    for args in ((), ("text",), (b"a", b"b")):
        with pytest.raises(PayloadError, match="exactly one argument of bytes"):
            codec.encode(args, {})
    with pytest.raises(ConfigError, match="one parameter for the bytes"):
        codec_for(three, "raw")
    with pytest.raises(ConfigError, match="'json' or 'raw'"):
        codec_for(handler, "yaml")


def test_what_the_handler_of_a_topic_gets() -> None:
    def whole(job: Job) -> None: ...

    def raw(message: bytes) -> None: ...

    whole.__annotations__["job"], raw.__annotations__["message"] = Job, bytes
    arrived = job(b"[1]")
    assert value_codec_for(whole).decode(arrived) == ((arrived,), {})
    assert value_codec_for(raw).decode(arrived) == ((b"[1]",), {})
    with pytest.raises(ConfigError, match="one parameter for the message"):
        value_codec_for(three)


def test_a_pydantic_model_comes_and_goes_as_json() -> None:
    class Order(pydantic.BaseModel):
        id: int
        sender: IPv4Address  # one of the types that pydantic can write and we cannot

    def handler(order: Order) -> None: ...

    handler.__annotations__["order"] = Order
    order = Order(id=1, sender=IPv4Address("127.0.0.1"))
    codec = codec_for(handler)
    payload = codec.encode((order,), {})
    assert json.loads(payload) == {"id": 1, "sender": "127.0.0.1"}
    assert codec.decode(job(payload)) == ((order,), {})
    with pytest.raises(PayloadError, match="does not fit"):
        codec.decode(job(b'{"id":"x"}'))


@given(JSON)
def test_a_topic_value_arrives(value: Any) -> None:
    codec = value_codec_for(lambda message: None)
    assert codec.decode(job(codec.encode((value,), {}))) == ((value,), {})


@given(st.binary(max_size=50))
def test_bytes_that_do_not_fit_are_a_payload_error_and_nothing_else(payload: bytes) -> None:
    try:
        args, kwargs = codec_for(three).decode(job(payload))
    except PayloadError:
        return
    assert "a" in kwargs
    assert args == ()


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, "\ud800", lambda: None, float],
    ids=["object", "set", "surrogate", "function", "class"],
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        encode_value(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        encode_value(circle)


def test_annotations_that_exist_only_for_type_checkers_are_not_checked() -> None:
    def handler(a: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert codec_for(handler).decode(job(b'{"a":[1]}')) == ((), {"a": [1]})


def test_a_default_applies_when_the_argument_is_left_out() -> None:
    def handler(a: int, b: list[int] = [1]) -> None: ...  # noqa: B006

    assert codec_for(handler).decode(job(b'{"a":1}')) == ((), {"a": 1})


def test_a_single_struct_may_have_no_other_argument() -> None:
    class Order(msgspec.Struct):
        id: int

    def handler(order: Order) -> None: ...

    handler.__annotations__["order"] = Order
    codec = codec_for(handler)
    assert codec.encode((), {"order": Order(1)}) == b'{"id":1}'
    for args, kwargs in [((), {}), ((Order(1), 2), {}), ((), {"other": Order(1)})]:
        with pytest.raises(PayloadError, match="exactly one argument, order"):
            codec.encode(args, kwargs)


@dataclass
class Window:
    days: int = 7


def test_the_default_of_the_one_object_is_written_out() -> None:
    def report(window: Window = Window(30)) -> None: ...  # noqa: B008

    codec = codec_for(report)
    assert codec.encode((), {}) == b'{"days":30}'
    assert codec.encode((Window(1),), {}) == b'{"days":1}'
    with pytest.raises(PayloadError, match="exactly one argument, window"):
        codec.encode((), {"windows": Window()})
