"""Arguments to payload bytes and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import PayloadError
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
