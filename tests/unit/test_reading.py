"""What arrives is read as tolerantly as Go reads it; `strict` reads it as it is sent from here."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus import App, PayloadError
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.wire.json_reader import MISFITS, JsonReader, adapted
from veredus.wire.payload import codec_for, value_codec_for
from veredus.wire.results import result_decoder


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Node:
    n: int
    tags: list[str] = field(default_factory=lambda: ["default"])
    kids: list[Node] | None = None
    note: str | None = "default"
    limit: int = 7


class Point(msgspec.Struct):
    a: int
    b: float = 0.5
    c: dict[str, list[int]] = {}


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class Cat(msgspec.Struct, tag="cat"):
    a: int


class Dog(msgspec.Struct, tag="dog"):
    a: int
    b: list[int] = []


class Row(msgspec.Struct, array_like=True):
    a: int
    b: list[int]


class Tagged(msgspec.Struct, array_like=True, tag="t"):
    a: int


class Pair(NamedTuple):
    a: int
    b: list[int]


class Loose(TypedDict, total=False):
    a: int
    b: list[int]


class Renamed(msgspec.Struct, rename="camel"):
    user_id: int
    nick_names: list[str] = []


class Model(pydantic.BaseModel):
    a: int
    b: list[int] = []


def read(kind: Any, payload: str, *, strict: bool = False) -> Any:
    return JsonReader(kind, strict=strict).read(payload.encode())


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (int, "3.0", 3),
        (int, "1e+06", 1_000_000),
        (int, "-2.50e2", -250),
        (int, "1e300", 10**300),
        (int, "0.0", 0),
        (int, "9007199254740993.0", 9007199254740993),
        (list[int], "[1, 2.0, 3e0]", [1, 2, 3]),
        (dict[str, int], '{"x": 1e1}', {"x": 10}),
        (dict[str, dict[str, set[int]]], '{"x": {"y": [2.0]}, "z": null}', {"x": {"y": {2}}, "z": {}}),
        (tuple[int, str], '[4.0, "4.0"]', (4, "4.0")),
        (int | None, "5.0", 5),
        (int | str, "5.0", 5),
        (int | float, "5.0", 5.0),
        (dict[str, int | float | list[int]], '{"x": 5.0, "y": null}', {"x": 5.0, "y": []}),
        (Size, "2.0", Size.LARGE),
        (Literal[1, 2], "2.0", 2),
        (Annotated[int, msgspec.Meta(ge=3, title="many")], "3.0", 3),
        (list[str], "null", []),
        (dict[str, int], "null", {}),
        (set[int], "null", set()),
        (frozenset[int], "null", frozenset()),
        (tuple[int, ...], "null", ()),
        (list[list[int]], "[null, [1]]", [[], [1]]),
        (list[int] | str, "null", []),
        (list[int] | None, "null", None),
        (Any, "null", None),
        (Node, '{"n": 1, "tags": null, "note": null, "limit": null, "new": {}}', Node(1, ["default"], None, None, 7)),
        (Node, '{"n": 1.0, "kids": [{"n": 2e0, "kids": null, "x": 0}]}', Node(1, kids=[Node(2)])),
        (Point, '{"a": 1, "b": null, "c": {"x": null, "y": [1.0]}}', Point(1, 0.5, {"x": [], "y": [1]})),
        (Cat | Dog, '{"type": "dog", "a": 1.0, "b": null, "c": 1}', Dog(1, [])),
        (Row, "[1.0, null]", Row(1, [])),
        (Tagged, '["t", 1.0]', Tagged(1)),
        (Pair, "[1.0, null]", Pair(1, [])),
        (Loose, '{"a": 1.0, "b": null}', {"a": 1}),
        (Loose, "null", {}),
        (Renamed, '{"userId": 7.0, "nickNames": null, "user_id": "x"}', Renamed(7)),
        (list[Model], '[{"a": 1e0, "c": 5}]', [Model(a=1)]),
        (dict[str, Decimal | list[int]], '{"x": 1.10000000000000000000000000001, "y": null}',
         {"x": Decimal("1.10000000000000000000000000001"), "y": []}),
        (dict[str, Any], '{"x": 100000000000000000000000, "y": 1.5, "z": null}',
         {"x": 10**23, "y": 1.5, "z": None}),
    ],
)  # fmt: skip
def test_what_go_sends_is_read(kind: Any, payload: str, value: Any) -> None:
    found = read(kind, payload)
    assert found == value
    assert repr(found) == repr(value), "a float is no int, however equal they are"


@pytest.mark.parametrize(
    ("kind", "payload", "says"),
    [
        (Node, '{"n": 1.5}', r"Expected `int`, got `float` - at `\$\.n`"),
        (Node, '{"tags": []}', "missing required field `n`"),
        (Node, '{"n": null}', r"Expected `int`, got `null` - at `\$\.n`"),
        (Node, '{"n": 1, "kids": [{"n": 0.5}]}', r"at `\$\.kids\[0\]\.n`"),
        (Node, "null", "Expected `object`, got `null`"),
        (str, "null", "Expected `str`, got `null`"),
        (list[int], "[null]", r"Expected `int`, got `null` - at `\$\[0\]`"),
        (tuple[int, int], "null", "Expected `array`"),
        (list[int] | dict[str, int], "null", "got `null`"),
        (int, '"3.0"', "Expected `int`, got `str`"),
        (int, "true", "Expected `int`, got `bool`"),
        (int, "1e309", "."),
        (int, "1e999999999", "."),
        (int, "1e-999999999", "."),
        (int, "1e99999999999999999999999", "."),
        (int, "-0.1", "Expected `int`"),
        (Size, "3.0", "Invalid enum value 3"),
        (Annotated[int, msgspec.Meta(ge=3)], "2.0", "`int` >= 3"),
        (Annotated[list[int], msgspec.Meta(min_length=1)], "null", "length >= 1"),
        (Closed, '{"a": 1, "b": 2}', "unknown field `b`"),
        (Closed, '{"a": 1.0, "b": 2}', "unknown field `b`"),
        (Model, '{"a": 1.5}', "valid integer"),
        (Model, '{"a": 1, "b": null}', "valid list"),
        (int, "1.0.0", "malformed"),
        (int, "[", "truncated"),
        (Node, "[" * 600 + "]" * 600, "nested more than 500 deep"),
    ],
)
def test_what_stays_an_error_names_the_field_what_it_has_and_what_it_should_have(
    kind: Any, payload: str, says: str
) -> None:
    with pytest.raises(PayloadError, match=f"(?s)^payload does not fit: .*{says}"):
        read(kind, payload)


def test_a_deep_payload_is_adapted_to_its_bottom() -> None:
    payload = '{"n": 1.0, "kids": [' * 240 + '{"n": 2e0}' + "]}" * 240
    node = read(Node, payload)
    for _ in range(240):
        assert (node.n, node.tags) == (1, ["default"])
        (node,) = node.kids
    assert node.n == 2


def handler(user_id: int, tags: list[str], lang: str = "en", extra: dict[str, int] | None = None) -> None: ...


handler.__annotations__ = {"user_id": int, "tags": list[str], "lang": str, "extra": dict[str, int] | None}
Decode = Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]


def decoding(function: Any, *, strict: bool = False, topic: bool = False) -> Decode:
    codec = value_codec_for(function, strict=strict) if topic else codec_for(function, strict=strict)
    return lambda payload: codec.decode(Job(TaskMessage(type="t", id="1", queue="q", payload=payload)))


def test_arguments_by_name() -> None:
    decode = decoding(handler)
    sent = b'{"user_id": 7.0, "tags": null, "lang": null, "extra": null, "added": {"by": "Go"}}'
    assert decode(sent) == ((), {"user_id": 7, "tags": [], "extra": None})
    for bad, says in [
        (b'{"tags": []}', "missing required field `user_id`"),
        (b'{"user_id": 1.5, "tags": []}', r"Expected `int`, got `float` - at `\$.user_id`"),
        (b'{"user_id": null, "tags": []}', r"Expected `int`, got `null` - at `\$.user_id`"),
        (b"null", "Expected `object`, got `null`"),
    ]:
        with pytest.raises(PayloadError, match=says):
            decode(bad)

    def optional(n: int = 3) -> None: ...

    optional.__annotations__["n"] = int
    for nothing in (b"", b"null", b"{}", b'{"n": null}'):
        assert decoding(optional)(nothing) == ((), {})


def test_strict_reads_what_is_sent_from_here_and_nothing_else() -> None:
    decode = decoding(handler, strict=True)
    assert decode(b'{"user_id": 7, "tags": []}') == ((), {"user_id": 7, "tags": []})
    for bad, says in [
        (b'{"user_id": 7, "tags": [], "added": 1}', "unknown field `added`"),
        (b'{"user_id": 7.0, "tags": []}', "Expected `int`, got `float`"),
        (b'{"user_id": 7, "tags": null}', "Expected `array`, got `null`"),
        (b'{"user_id": 7, "tags": [], "lang": null}', "Expected `str`, got `null`"),
    ]:
        with pytest.raises(PayloadError, match=says):
            decode(bad)


def test_the_one_object_of_a_handler_and_the_message_of_a_topic() -> None:
    def take(node: Any = Node(5)) -> None: ...  # noqa: B008

    take.__annotations__["node"] = Node
    for topic in (False, True):
        assert decoding(take, topic=topic)(b'{"n": 1e0, "more": 1}') == ((Node(1),), {})
        for nothing in (b"", b"null"):
            assert decoding(take, topic=topic)(nothing) == ((), {})
            with pytest.raises(PayloadError):
                decoding(take, topic=topic, strict=True)(nothing)
    take.__annotations__["node"] = Node | None
    assert decoding(take, topic=True)(b"null") == ((None,), {})

    def numbers(message: Any) -> None: ...

    numbers.__annotations__["message"] = list[int]
    assert decoding(numbers, topic=True)(b"null") == (([],), {})
    assert decoding(numbers, topic=True)(b"[1e3]") == (([1000],), {})


def test_a_result_that_go_wrote() -> None:
    def count() -> Any: ...

    count.__annotations__["return"] = Point
    assert result_decoder(count)(b'{"a": 2.0, "c": null, "d": 1}') == Point(2)
    with pytest.raises(PayloadError, match=r"^the result does not fit: .*`a`"):
        result_decoder(count)(b'{"b": 1}')


def test_strict_for_a_task_a_topic_an_aggregator_and_an_app() -> None:
    arrived = Job(TaskMessage(type="t", id="1", queue="q", payload=b'{"n": 1.0}'))

    def take(n: int) -> None: ...

    def node(message: Node) -> None: ...

    def digest(group: str, members: list[Node]) -> None: ...

    for of_app, given_, is_strict in [
        (False, None, False), (True, None, True), (False, True, True), (True, False, False)
    ]:  # fmt: skip
        app = App("redis://127.0.0.1:1", strict=of_app)
        setting: dict[str, Any] = {} if given_ is None else {"strict": given_}
        app.aggregate("g", **setting)(digest)
        tasks: list[Any] = [
            app.task(name="t", **setting)(take),
            app.handler("h", **setting)(take),
            app.topic("o", **setting)(node),
        ]
        for decode in [*(task.codec.decode for task in tasks), app.aggregations[0].decode]:
            if is_strict:
                with pytest.raises(PayloadError, match="Expected `int`, got `float`"):
                    decode(arrived)
            else:
                decode(arrived)


def test_what_is_sent_from_here_is_checked_strictly_whatever_arrives() -> None:
    app = App("redis://127.0.0.1:1")
    task: Any = app.task(name="t")(handler)
    for bad in ({"user_id": 1.0, "tags": []}, {"user_id": 1, "tags": None}, {"user_id": 1, "tags": [], "lang": None}):
        with pytest.raises(PayloadError, match=r"^task 't': argument '\w+' of type \w+ does not fit"):
            task.call(**bad)
        with pytest.raises(PayloadError, match=r"^task 't': argument '\w+' of type \w+ does not fit"):
            app.call("t", bad)
    with pytest.raises(PayloadError, match="has no argument 'added'"):
        task.call(1, [], added=1)
    with pytest.raises(PayloadError, match="unknown field `added`"):
        app.call("t", {"user_id": 1, "tags": [], "added": 1})


KINDS = [
    int, float, str, bool, list[int], int | None, dict[str, int], tuple[int, ...], tuple[int, str], set[int], int | str,
    int | float, Any, Node, Point, Cat | Dog, Row, Pair, Loose, Size, Decimal, list[Node | None], dict[str, Point],
    Closed, Model | None, list[dict[str, list[int | None]]],
]  # fmt: skip
NAMES = st.sampled_from(["n", "a", "b", "c", "tags", "kids", "note", "limit", "type", "x"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1.0, 2.0, 1e6, "cat", "dog"]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
NODES = st.recursive(
    st.fixed_dictionaries({"n": st.integers(), "a": st.integers(), "type": st.sampled_from(["cat", "dog"])}),
    lambda kids: st.fixed_dictionaries(
        {"n": st.integers(), "a": st.integers()},
        optional={"kids": st.lists(kids, max_size=2) | st.none(), "tags": st.lists(st.text(max_size=2)) | st.none()},
    ),
    max_leaves=5,
)


@given(JSON | NODES | st.lists(NODES, max_size=2), st.sampled_from(KINDS))
def test_what_strict_accepts_tolerant_reads_equally(value: Any, kind: Any) -> None:
    payload = json.dumps(value).encode()
    reader = JsonReader(kind)
    try:
        expected = reader.exact(payload)
    except MISFITS:
        return
    assert reader.read(payload) == expected
    again = reader.exact(adapted(payload, reader._shape))
    assert again == expected
    assert repr(again) == repr(expected)


@given(JSON | NODES, st.sampled_from(KINDS))
def test_adapting_twice_changes_nothing_more(value: Any, kind: Any) -> None:
    reader = JsonReader(kind)
    once = adapted(json.dumps(value).encode(), reader._shape)
    assert adapted(once, reader._shape) == once


@given(st.binary(max_size=30) | (JSON | NODES).map(lambda value: json.dumps(value).encode()), st.sampled_from(KINDS))
def test_whatever_arrives_is_read_or_a_payload_error(payload: bytes, kind: Any) -> None:
    try:
        JsonReader(kind).read(payload)
    except PayloadError:
        pass
