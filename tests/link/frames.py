"""Hypothesis strategies for every frame, within the limits of the schema."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from veredus.model.delivery import Cursor
from veredus.model.frames import FRAMES, MAX_NUMBER, Frame, Gap, Kind, Limits, OpenRequest, Resume
from veredus.wire.gateway_schema import MAX_METADATA_KEY, MESSAGES, SchemaField

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=16)
numbers = st.integers(0, MAX_NUMBER)
json_bodies = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
bodies = st.one_of(
    st.tuples(json_bodies | st.just(b""), st.just("json")), st.tuples(st.binary(max_size=40), st.just("raw"))
)
_NESTED: dict[str, Any] = {"Cursor": Cursor, "Resume": Resume, "Limits": Limits, "OpenRequest": OpenRequest}


def _field(name: str, field: SchemaField) -> st.SearchStrategy[Any]:
    kind = field.kind
    if kind == "Kind":
        return st.sampled_from(Kind)
    if kind == "bool":
        return st.booleans()
    if kind == "string":
        return st.text(st.characters(exclude_categories=["Cs"]), min_size=field.least, max_size=min(16, field.most))
    if kind.startswith("map<"):
        return st.dictionaries(st.text(max_size=MAX_METADATA_KEY // 8).filter(_encodable), texts, max_size=4)
    if kind.startswith("repeated "):
        return st.lists(value(_NESTED[kind.split()[1]]), max_size=3).map(tuple)
    if kind in _NESTED:
        return value(_NESTED[kind]) | st.none() if name == "resume" else value(_NESTED[kind])
    return st.integers(field.least, field.most)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def value(cls: Any) -> st.SearchStrategy[Any]:
    fields = MESSAGES[cls.__name__]
    plain = {name: _field(name, field) for name, field in fields.items() if name not in ("body", "encoding")}
    if "body" not in fields:
        return st.builds(cls, **plain)
    return st.tuples(st.builds(cls, **plain), bodies).map(
        lambda pair: pair[0]._replace(body=pair[1][0], encoding=pair[1][1])
    )


frames: st.SearchStrategy[Frame] = st.one_of(
    *(value(cls) for cls in FRAMES.values() if cls is not Gap),
    value(Gap).map(lambda gap: gap._replace(first=min(gap[:2]), last=max(gap[:2]))),
)
