"""The current trace, while one is recorded: in the metadata of messages to clients, in children, around steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from veredus.model.job import Job

Supplier = Callable[[], Mapping[str, str]]
StepSpan = Callable[[str, Job], AbstractContextManager[Any]]

STEP_SPANS: list[StepSpan] = []
"""Opened around every step of a durable task, with its name."""

SUPPLIERS: list[Supplier] = []
"""Called for every message. One function per process, because a trace covers all of its apps."""


def with_trace(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """The sender's own metadata wins."""
    if not SUPPLIERS:
        return metadata or {}
    carried: dict[str, str] = {}
    for supplier in SUPPLIERS:
        carried.update(supplier())
    return {**carried, **(metadata or {})}
