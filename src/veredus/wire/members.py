"""The argument of an aggregating function for a member of a group: the job, its bytes, or its JSON as a type."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from veredus.errors import ConfigError
from veredus.model.job import Job
from veredus.wire.payload import annotation_of, name_of, reader_for, wire_parameters


def member_decoder_for(function: Callable[..., Any], *, strict: bool = False) -> Callable[[Job], Any]:
    """Decided by the second parameter: `list[Job]` (the default), `list[bytes]`, or `list[T]` for types that JSON
    can represent."""
    parameters = wire_parameters(function)
    if len(parameters) != 2 or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        raise ConfigError(
            "aggregator", name_of(function), "two parameters: the group's name and the list of its members"
        )
    kind = _member_type(function, parameters[1])
    if kind is Any or kind is Job:
        return lambda job: job
    if kind is bytes:
        return lambda job: job.payload
    reader = reader_for(kind, function, strict=strict)
    return lambda job: reader.read(job.payload)


def _member_type(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    annotation = annotation_of(function, parameter)
    if annotation is Any or annotation in (list, Sequence):
        return Any
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) not in (list, Sequence) or len(arguments) != 1:
        raise ConfigError(
            f"parameter {parameter.name!r} of {name_of(function)}()",
            str(parameter),
            "list[Job], list[bytes] or list[T]",
        )
    return arguments[0]
