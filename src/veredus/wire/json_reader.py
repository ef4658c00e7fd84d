"""Reads JSON as a Python type, as tolerantly as Go's encoding/json, or strictly."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec
from msgspec import inspect as shapes

from veredus.errors import PayloadError
from veredus.model.nesting import MAX_DEPTH, too_deep

MISFITS = (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, RecursionError)
"""What reading may raise: errors of msgspec, of a model's own checks, and of numbers out of range."""


class JsonReader:
    """Reads one type. Data that fits is read at once; only other data is adapted and read again."""

    def __init__(self, kind: Any, *, strict: bool = False, what: str = "payload") -> None:
        """Raises TypeError or NotImplementedError for a type that JSON cannot represent."""
        self._kind = kind
        self._strict = strict
        self._what = what
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_from_json)

    def exact(self, data: bytes) -> Any:
        """Reads without tolerance. Raises one of MISFITS."""
        return self._decoder.decode(data)

    def read(self, data: bytes) -> Any:
        """Raises PayloadError, which names the field, its value and what it should have."""
        if too_deep(data):
            raise PayloadError(f"{self._what} does not fit: nested more than {MAX_DEPTH} deep")
        try:
            return self._decoder.decode(data)
        except MISFITS as exc:
            misfit: Exception = exc
        if not self._strict:
            try:
                return self._decoder.decode(adapted(data, self._shape))
            except MISFITS as exc:
                misfit = exc
        raise PayloadError(f"{self._what} does not fit: {misfit}") from misfit

    def is_absent(self, data: bytes) -> bool:
        """Whether this is a null without a value."""
        return not self._strict and data == b"null" and not _takes_null(_alternatives(self._shape))

    @cached_property
    def _shape(self) -> shapes.Type:
        return shapes.type_info(self._kind)


def adapted(data: bytes, shape: shapes.Type) -> bytes:
    """The same JSON with what only another language would write corrected: null where the type has a default or an
    empty value, and whole numbers written as 3.0 or 1e+06 where it wants an int. What fits already is not changed."""
    root = [_UNTYPED.decode(data)]
    waiting: list[tuple[Any, Any, shapes.Type]] = [(root, 0, shape)]
    while waiting:
        holder, place, kind = waiting.pop()
        value, kinds = holder[place], _alternatives(kind)
        if value is None:
            holder[place] = _instead_of_null(kinds)
        elif isinstance(value, msgspec.Raw):
            holder[place] = _whole(value, kinds)
        elif isinstance(value, dict):
            _drop_nulls(value, kinds)
            waiting += [(value, name, kind) for name, kind in _members(value, kinds)]
        elif isinstance(value, list):
            waiting += [(value, number, kind) for number, kind in _items(value, kinds)]
    return msgspec.json.encode(root[0])


_UNTYPED = msgspec.json.Decoder(float_hook=lambda digits: msgspec.Raw(digits.encode()))
"""Numbers with a point or an exponent keep their text: a Decimal may need every digit."""
_FREE = (shapes.NoneType, shapes.AnyType, shapes.CustomType, shapes.RawType)
"""These types accept null and any number, or have rules of their own, like pydantic's models."""
_FRACTIONS = (*_FREE[1:], shapes.FloatType, shapes.DecimalType)
_OBJECTS = (shapes.StructType, shapes.DataclassType, shapes.TypedDictType)
_TUPLES = (shapes.StructType, shapes.NamedTupleType)
_DICTS = tuple(getattr(shapes, name) for name in ("DictType", "FrozenDictType") if hasattr(shapes, name))

Kinds = tuple[shapes.Type, ...]


def _alternatives(kind: shapes.Type) -> Kinds:
    while isinstance(kind, shapes.Metadata):
        kind = kind.type
    return kind.types if isinstance(kind, shapes.UnionType) else (kind,)


def _takes_null(kinds: Kinds) -> bool:
    return any(isinstance(k, _FREE) or (isinstance(k, shapes.LiteralType) and None in k.values) for k in kinds)


def _instead_of_null(kinds: Kinds) -> Any:
    """Go writes null for a nil slice, map or pointer: read it as the type's empty value, if there is one."""
    found = [] if _takes_null(kinds) else [empty for kind in kinds if (empty := _empty(kind)) is not None]
    return found[0] if len(found) == 1 else None


def _empty(kind: shapes.Type) -> Any:
    if isinstance(kind, shapes.CollectionType):
        return []
    if isinstance(kind, _DICTS):
        return {}
    if _is_object(kind) and not any(field.required for field in kind.fields):  # type: ignore[attr-defined]
        return {}
    return None


def _whole(number: msgspec.Raw, kinds: Kinds) -> Any:
    """As an int, if the type is int and this is a whole number."""
    if any(isinstance(kind, _FRACTIONS) for kind in kinds) or not any(_is_int(kind) for kind in kinds):
        return number
    exact = Decimal(bytes(number).decode())
    if exact.adjusted() > _MOST_DIGITS or exact != exact.to_integral_value():
        return number
    return int(exact)


_MOST_DIGITS = 308
"""The digits of the largest float. 1e999999999 is never intended, and would take gigabytes to write out."""


def _is_int(kind: shapes.Type) -> bool:
    values: Any = ()
    if isinstance(kind, shapes.LiteralType):
        values = kind.values
    elif isinstance(kind, shapes.EnumType):
        values = [member.value for member in kind.cls]
    return isinstance(kind, shapes.IntType) or any(isinstance(value, int) for value in values)


def _is_object(kind: shapes.Type) -> bool:
    return isinstance(kind, _OBJECTS) and not getattr(kind, "array_like", False)


def _fields(value: dict[str, Any], kinds: Kinds) -> dict[str, shapes.Field]:
    """The class for this object. If there are several, its tag decides."""
    found: list[Any] = [kind for kind in kinds if _is_object(kind)]
    if len(found) > 1:
        found = [kind for kind in found if value.get(kind.tag_field) == kind.tag]
    return {field.encode_name: field for field in found[0].fields} if found else {}


def _drop_nulls(value: dict[str, Any], kinds: Kinds) -> None:
    """A field that is left out gets its default."""
    fields = _fields(value, kinds)
    for name in [name for name, member in value.items() if member is None and name in fields]:
        if not fields[name].required and not _takes_null(_alternatives(fields[name].type)):
            del value[name]


def _members(value: dict[str, Any], kinds: Kinds) -> list[tuple[str, shapes.Type]]:
    for kind in kinds:
        if isinstance(kind, _DICTS):
            return [(name, kind.value_type) for name in value]
    fields = _fields(value, kinds)
    return [(name, fields[name].type) for name in value if name in fields]


def _items(value: list[Any], kinds: Kinds) -> list[tuple[int, shapes.Type]]:
    for kind in kinds:
        if isinstance(kind, shapes.CollectionType):
            return [(number, kind.item_type) for number in range(len(value))]
        if isinstance(kind, shapes.TupleType):
            return list(enumerate(kind.item_types[: len(value)]))
        if isinstance(kind, _TUPLES) and not _is_object(kind):
            first = 0 if getattr(kind, "tag_field", None) is None else 1
            return [(first + number, field.type) for number, field in enumerate(kind.fields[: len(value) - first])]
    return []


def _from_json(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise TypeError(f"{kind.__qualname__} has no JSON form; use a dataclass, a msgspec.Struct or a pydantic model")
