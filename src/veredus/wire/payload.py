"""Arguments to payload bytes and back: JSON objects that a Go struct decodes, checked against the signature."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

import msgspec

from veredus.errors import ConfigError, PayloadError
from veredus.model.depends import Dependency
from veredus.model.job import Job
from veredus.model.nesting import MAX_DEPTH, too_deep
from veredus.wire.reading import MISFITS, Reader

_UNSET = msgspec.UNSET


class Codec(Protocol):
    """How the arguments of one handler travel."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes: ...

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises PayloadError if a strict `decode` would; `args` and `kwargs` are what it was made from, to name their
        types."""
        ...

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with. Raises PayloadError if the payload does not fit."""
        ...


def codec_for(function: Callable[..., Any], kind: str = "json", *, strict: bool = False) -> Codec:
    """By the signature: a Job, raw bytes, one object (dataclass, msgspec, pydantic), or the arguments as an object.
    `strict` is about what arrives; what is sent from here is always checked strictly."""
    if kind not in ("json", "raw"):
        raise ConfigError("payload", kind, "'json' or 'raw'", known=("json", "raw"))
    parameters = _wire_parameters(function)
    only = parameters[0] if len(parameters) == 1 else None
    if only is not None and _annotation(function, only) is Job:
        return JobCodec()
    if kind == "raw":
        if only is None:
            raise ConfigError("payload", kind, f"one parameter for the bytes in {name_of(function)}()")
        return RawCodec()
    if only is not None and _is_object(_annotation(function, only)):
        return ValueCodec(function, only, strict=strict)
    return ArgumentsCodec(function, parameters, strict=strict)


def value_codec_for(function: Callable[..., Any], *, strict: bool = False) -> Codec:
    """For topics: the payload is any JSON value, given to the one parameter."""
    parameters = _wire_parameters(function)
    if len(parameters) != 1:
        raise ConfigError("topic handler", name_of(function), "one parameter for the message")
    annotation = _annotation(function, parameters[0])
    if annotation is Job:
        return JobCodec()
    return RawCodec() if annotation is bytes else ValueCodec(function, parameters[0], strict=strict)


def encode_value(value: Any) -> bytes:
    """Any JSON value; raises PayloadError that says what cannot be encoded."""
    try:
        data = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as exc:
        raise PayloadError(f"payload: cannot be written as JSON: {exc}") from exc
    if too_deep(data):
        raise PayloadError(f"payload: cannot be written as JSON: nested more than {MAX_DEPTH} deep")
    if b"null" in data and (number := _not_finite(value)) is not None:
        raise PayloadError(f"payload: cannot be written as JSON: {number} is no number in JSON; send None or a string")
    return data


class RawCodec:
    """Bytes as they are."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        values = [*args, *kwargs.values()]
        if len(values) != 1 or not isinstance(values[0], bytes | bytearray | memoryview):
            raise PayloadError(f"payload: expected exactly one argument of bytes, got {values!r:.100}")
        return bytes(values[0])

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Any bytes will do."""

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (job.payload,), {}


class JobCodec(RawCodec):
    """The job itself, undecoded."""

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (job,), {}


class _Decoding:
    """What is decoded by a signature, and may be checked by it where it is sent."""

    _function: Callable[..., Any]
    _empty = b""
    """What no payload at all stands for."""

    @cached_property
    def _sent(self) -> Reader:
        """Reads what is sent from here."""
        raise NotImplementedError

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if "_sent" not in self.__dict__ and _is_being_imported(self._function):
            return  # a schedule, declared above the classes that its task names: what it sends is checked on arrival
        try:
            self._sent.exact(payload or self._empty)
        except MISFITS as exc:
            raise PayloadError(f"task {task!r}: {self._named(str(exc), args, kwargs)}{exc}") from exc

    def _named(self, problem: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Whose argument it is that does not fit, as far as the problem says."""
        raise NotImplementedError


class ValueCodec(_Decoding):
    """The payload is the one argument."""

    def __init__(self, function: Callable[..., Any], parameter: inspect.Parameter, *, strict: bool = False) -> None:
        self._function = function
        self._parameter = parameter
        self._strict = strict

    def _named(self, problem: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return "".join(_argument(self._parameter.name, value) for value in [*args, *kwargs.values()][:1])

    @cached_property
    def _sent(self) -> Reader:
        return reader_for(_annotation(self._function, self._parameter), self._function, strict=self._strict)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        values = [*args, *kwargs.values()]
        if not values and self._parameter.default is not self._parameter.empty:
            values = [self._parameter.default]  # written out: whoever runs it may be in another language
        if len(values) != 1 or (kwargs and self._parameter.name not in kwargs):
            raise PayloadError(f"{name_of(self._function)}() takes exactly one argument, {self._parameter.name}")
        return encode_value(values[0])

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        payload = job.payload or (b"" if self._strict else b"null")  # Go's nil, in either form
        if self._parameter.default is not self._parameter.empty and self._sent.is_absent(payload):
            return (), {}
        return (self._sent.read(payload),), {}


class ArgumentsCodec(_Decoding):
    """The payload is an object with the arguments that were given, in the order of the signature."""

    _empty = b"{}"

    def __init__(
        self, function: Callable[..., Any], parameters: list[inspect.Parameter], *, strict: bool = False
    ) -> None:
        self._function = function
        self._parameters = parameters
        self._strict = strict
        self._names = tuple(p.name for p in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self._required = tuple(p.name for p in parameters if p.default is p.empty)
        is_enough = [set(self._required) <= set(self._positional[:number]) for number in range(len(parameters) + 1)]
        self._complete = range(is_enough.index(True), len(self._positional) + 1) if any(is_enough) else range(0)
        """So many arguments, given by their places alone, leave nothing to look at."""
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    f"parameter {parameter.name!r} of {name_of(function)}()",
                    str(parameter),
                    "a parameter with a name of its own: arguments travel as a JSON object",
                )

    @cached_property
    def _sent(self) -> Reader:
        return self._reader(strict=True)

    @cached_property
    def _arrived(self) -> Reader:
        return self._sent if self._strict else self._reader(strict=False)

    def _reader(self, *, strict: bool) -> Reader:
        fields: list[Any] = []
        for parameter in self._parameters:
            annotation = _annotation(self._function, parameter)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, annotation))
            else:  # left out on the wire means that Python's own default applies
                fields.append((parameter.name, typing.Union[annotation, msgspec.UnsetType], _UNSET))  # noqa: UP007
        record = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=strict)
        return reader_for(record, self._function, strict=strict)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if not kwargs and len(args) in self._complete:
            return encode_value(dict(zip(self._positional, args, strict=False)))
        if len(args) > len(self._positional):
            raise self._wrong(f"takes {len(self._positional)} positional arguments, got {len(args)}")
        given = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise self._wrong(f"got {name!r} twice")
            if name not in self._names:
                raise self._wrong(f"has no argument {name!r}")
            given[name] = value
        for name in self._required:
            if name not in given:
                raise self._wrong(f"misses the argument {name!r}")
        if kwargs:
            given = {name: given[name] for name in self._names if name in given}
        return encode_value(given)

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        record = self._arrived.read(job.payload or self._empty)
        arguments = {}
        for name in self._names:
            value = getattr(record, name)
            if value is not _UNSET:
                arguments[name] = value
        return (), arguments

    def _named(self, problem: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        match = re.search(r" - at `\$\.(\w+)", problem)
        return _argument(match[1], given[match[1]]) if match and match[1] in given else "the arguments do not fit: "

    def _wrong(self, what: str) -> PayloadError:
        return PayloadError(f"{name_of(self._function)}() {what}")


def name_of(function: Callable[..., Any]) -> str:
    """For messages to people; partials and callable objects have no name of their own."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def _wire_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if not isinstance(p.default, Dependency)]


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    if isinstance(function, functools.partial):
        return _annotation(function.func, parameter)
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing.get_type_hints(annotated, include_extras=True).get(parameter.name, Any)
    except NameError:
        # A name that exists only for type checkers: nothing to check against here.
        return parameter.annotation if not isinstance(parameter.annotation, str) else Any


def _is_object(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return (
        dataclasses.is_dataclass(annotation)
        or issubclass(annotation, msgspec.Struct)
        or hasattr(annotation, "model_validate")
    )


def reader_for(kind: Any, function: Callable[..., Any], *, strict: bool) -> Reader:
    """For what a function gets. Raises ConfigError for a type that JSON cannot carry."""
    try:
        return Reader(kind, strict=strict)
    except (TypeError, NotImplementedError) as exc:
        raise ConfigError(f"signature of {name_of(function)}()", str(exc), "types that JSON can carry") from exc


def _argument(name: str, value: Any) -> str:
    return f"argument {name!r} of type {type(value).__qualname__} does not fit: "


def _is_being_imported(function: Callable[..., Any]) -> bool:
    """Whether names in its annotations may still be missing because its module has not come to them."""
    while isinstance(function, functools.partial):
        function = function.func
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        typing.get_type_hints(annotated, include_extras=True)
    except NameError:
        spec = getattr(sys.modules.get(annotated.__module__), "__spec__", None)
        return bool(getattr(spec, "_initializing", annotated.__module__ == "__main__"))
    return False


def _not_finite(value: Any) -> float | None:
    """A number that msgspec writes as null: whoever reads it would take it for None."""
    waiting = [msgspec.to_builtins(value, enc_hook=_to_json)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return one
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
    return None


def _to_json(value: Any) -> Any:
    """For what msgspec does not know: pydantic models."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} objects have no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_to_json)
