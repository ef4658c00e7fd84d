"""Adds the current trace, while one is recorded, to the metadata of messages to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Supplier = Callable[[], Mapping[str, str]]

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
