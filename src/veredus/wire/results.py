"""Encodes a handler's return value as JSON, checked against the return annotation; bytes stay bytes."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from veredus.errors import PayloadError, ResultError
from veredus.model.nesting import too_deep
from veredus.wire.json_reader import JsonReader
from veredus.wire.payload import encode_value

Decode = Callable[[bytes], Any]


def result_decoder(function: Callable[..., Any] | None) -> Decode:
    """Decided by the return annotation. Without one: JSON if the data is JSON, else the bytes."""
    kind = _returned(function) if function is not None else Any
    if bytes in (kind, *_members(kind)):
        return bytes
    if kind is Any or kind is None or kind is type(None):
        return _anything
    try:
        return JsonReader(kind, what="the result").read
    except (TypeError, NotImplementedError):
        return _anything  # JSON cannot represent the type in full: better its plain form than nothing


def encode_result(value: Any, task_type: str) -> bytes:
    """Raises ResultError, which says what the handler returned and what to do."""
    try:
        return encode_value(value)
    except PayloadError as exc:
        close_coroutines(value)
        raise ResultError(f"the handler of {task_type} returned {_what(value, exc)}") from exc


def check_size(result: bytes, limit: int, task_type: str) -> bytes:
    """For a larger value, the server would close the connection that all callers share. Raises ResultError."""
    if len(result) > limit:
        raise ResultError(
            f"the result of {task_type} has {len(result):,} bytes, the server takes {limit:,} (proto-max-bulk-len): "
            "store large data elsewhere and return its address"
        )
    return result


def _what(value: Any, error: PayloadError) -> str:
    if inspect.iscoroutine(value):
        return "a coroutine: declare it with async def, or await the coroutine"
    if inspect.isgenerator(value):
        return "a generator: return a list"
    if inspect.isasyncgen(value):
        return "an async generator: return a list"
    name = type(value).__name__
    if inspect.isawaitable(value):
        return f"an awaitable of the class {name}: await it"
    return f"a value of the class {name} that {str(error).removeprefix('payload: ')}"


def close_coroutines(value: Any, depth: int = 3) -> None:
    """Close coroutines that nobody will await: otherwise Python warns about each."""
    if inspect.iscoroutine(value):
        value.close()
    elif depth and isinstance(value, list | tuple | set | dict):
        for one in value.values() if isinstance(value, dict) else value:
            close_coroutines(one, depth - 1)


def _anything(data: bytes) -> Any:
    try:
        return data if too_deep(data) else msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return data


def _returned(function: Callable[..., Any]) -> Any:
    if isinstance(function, functools.partial):
        return _returned(function.func)
    annotated = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return typing.get_type_hints(annotated, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return Any  # a name that exists only for type checkers


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else ()
