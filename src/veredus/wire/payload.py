"""Encodes arguments as payloads and back: JSON objects that a Go struct can decode, checked against the signature."""

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
from veredus.model.nesting import FLAT, MAX_DEPTH, too_deep
from veredus.wire.json_reader import MISFITS, JsonReader

_UNSET = msgspec.UNSET


class PayloadCodec(Protocol):
    """How the arguments of one handler are encoded."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes: ...

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises PayloadError if a strict `decode` would. `args` and `kwargs` are the values before encoding, so
        that the error can name their types."""
        ...

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the handler. Raises PayloadError if the payload does not fit."""
        ...


def codec_for(function: Callable[..., Any], kind: str = "json", *, strict: bool = False) -> PayloadCodec:
    """Decided by the signature: a Job, raw bytes, one object (dataclass, msgspec, pydantic), or the arguments as an
    object. `strict` applies to received payloads; payloads that are sent from here are always checked strictly."""
    if kind not in ("json", "raw"):
        raise ConfigError("payload", kind, "'json' or 'raw'", known=("json", "raw"))
    parameters = wire_parameters(function)
    only = parameters[0] if len(parameters) == 1 else None
    if only is not None and annotation_of(function, only) is Job:
        return JobCodec()
    if kind == "raw":
        if only is None:
            raise ConfigError("payload", kind, f"one parameter for the bytes in {name_of(function)}()")
        return RawCodec()
    if only is not None and _is_object(annotation_of(function, only)):
        return ValueCodec(function, only, strict=strict)
    return ArgumentsCodec(function, parameters, strict=strict)


def value_codec_for(function: Callable[..., Any], *, strict: bool = False) -> PayloadCodec:
    """For topics: the payload is any JSON value, passed to the only parameter."""
    parameters = wire_parameters(function)
    if len(parameters) != 1:
        raise ConfigError("topic handler", name_of(function), "one parameter for the message")
    annotation = annotation_of(function, parameters[0])
    if annotation is Job:
        return JobCodec()
    return RawCodec() if annotation is bytes else ValueCodec(function, parameters[0], strict=strict)


def encode_value(value: Any) -> bytes:
    """Encodes any JSON value. Raises PayloadError, which names what cannot be encoded."""
    try:
        data = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as exc:
        raise PayloadError(f"payload: cannot be written as JSON: {exc}") from exc
    if len(data) > FLAT and too_deep(data):
        raise PayloadError(f"payload: cannot be written as JSON: nested more than {MAX_DEPTH} deep")
    if b"null" in data and (number := _not_finite(value)) is not None:
        raise PayloadError(f"payload: cannot be written as JSON: {number} is no number in JSON; send None or a string")
    return data


def fields_of(payload: bytes) -> dict[str, Any]:
    """The fields of a payload that is a JSON object; none of any other."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class RawCodec:
    """Bytes, unchanged."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        values = [*args, *kwargs.values()]
        if len(values) != 1 or not isinstance(values[0], bytes | bytearray | memoryview):
            raise PayloadError(f"payload: expected exactly one argument of bytes, got {values!r:.100}")
        return bytes(values[0])

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Accepts any bytes."""

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (job.payload,), {}


class JobCodec(RawCodec):
    """The job itself, undecoded."""

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (job,), {}


class _Decoding:
    """A codec that decodes by a signature, and can check payloads where they are sent."""

    _function: Callable[..., Any]
    _empty = b""
    """The value for a missing payload."""

    @cached_property
    def _sent(self) -> JsonReader:
        """Reads payloads that are sent from here."""
        raise NotImplementedError

    def check(self, task: str, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if "_sent" not in self.__dict__ and _is_being_imported(self._function):
            return  # a schedule, declared above the classes that its task names: the payload is checked on arrival
        try:
            self._sent.exact(payload or self._empty)
        except MISFITS as exc:
            raise PayloadError(f"task {task!r}: {self._named(str(exc), args, kwargs)}{exc}") from exc

    def _named(self, problem: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The name of the argument that does not fit, as far as the error says."""
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
    def _sent(self) -> JsonReader:
        return reader_for(annotation_of(self._function, self._parameter), self._function, strict=self._strict)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        values = [*args, *kwargs.values()]
        if not values and self._parameter.default is not self._parameter.empty:
            values = [self._parameter.default]  # written out, because the handler may be in another language
        if len(values) != 1 or (kwargs and self._parameter.name not in kwargs):
            raise PayloadError(f"{name_of(self._function)}() takes exactly one argument, {self._parameter.name}")
        return encode_value(values[0])

    def decode(self, job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        payload = job.payload or (b"" if self._strict else b"null")  # Go's nil, in either form
        if self._parameter.default is not self._parameter.empty and self._sent.is_absent(payload):
            return (), {}
        return (self._sent.read(payload),), {}


class ArgumentsCodec(_Decoding):
    """The payload is an object with the given arguments, in the order of the signature."""

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
        """The numbers of positional arguments that need no further check against the signature."""
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    f"parameter {parameter.name!r} of {name_of(function)}()",
                    str(parameter),
                    "a parameter with a name of its own: arguments travel as a JSON object",
                )

    @cached_property
    def _record(self) -> Callable[..., Any]:
        """Written as the same object as a dict of the arguments, in half the time."""
        return msgspec.defstruct("Arguments", [(name, Any, _UNSET) for name in self._positional])

    @cached_property
    def _sent(self) -> JsonReader:
        return self._reader(strict=True)

    @cached_property
    def _arrived(self) -> JsonReader:
        return self._sent if self._strict else self._reader(strict=False)

    def _reader(self, *, strict: bool) -> JsonReader:
        fields: list[Any] = []
        for parameter in self._parameters:
            annotation = annotation_of(self._function, parameter)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, annotation))
            else:  # absent on the wire means that Python's own default applies
                fields.append((parameter.name, typing.Union[annotation, msgspec.UnsetType], _UNSET))  # noqa: UP007
        record = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=strict)
        return reader_for(record, self._function, strict=strict)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if not kwargs and len(args) in self._complete:
            return encode_value(self._record(*args))
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
    """A name for messages; partials and callable objects have none of their own."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def wire_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if not isinstance(p.default, Dependency)]


def annotation_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    if isinstance(function, functools.partial):
        return annotation_of(function.func, parameter)
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing.get_type_hints(annotated, include_extras=True).get(parameter.name, Any)
    except NameError:
        # The name exists only for type checkers: nothing to check against.
        return parameter.annotation if not isinstance(parameter.annotation, str) else Any


def _is_object(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return (
        dataclasses.is_dataclass(annotation)
        or issubclass(annotation, msgspec.Struct)
        or hasattr(annotation, "model_validate")
    )


def reader_for(kind: Any, function: Callable[..., Any], *, strict: bool) -> JsonReader:
    """The reader for a function's parameter. Raises ConfigError for a type that JSON cannot represent."""
    try:
        return JsonReader(kind, strict=strict)
    except (TypeError, NotImplementedError) as exc:
        raise ConfigError(f"signature of {name_of(function)}()", str(exc), "types that JSON can carry") from exc


def _argument(name: str, value: Any) -> str:
    return f"argument {name!r} of type {type(value).__qualname__} does not fit: "


def _is_being_imported(function: Callable[..., Any]) -> bool:
    """Whether names in the annotations may be missing only because the module is still being imported."""
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
    """A number that msgspec writes as null: the reader would take it for None."""
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
    """For types that msgspec does not know: pydantic models."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} objects have no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_to_json)
