"""What messages to clients carry besides their own metadata: the trace that they belong to, while one is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Supplier = Callable[[], Mapping[str, str]]

SUPPLIERS: list[Supplier] = []
"""Asked for every message; of this process, because a trace goes through all apps in it."""


def with_carried(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    """What the sender says itself wins."""
    if not SUPPLIERS:
        return metadata or {}
    carried: dict[str, str] = {}
    for supplier in SUPPLIERS:
        carried.update(supplier())
    return {**carried, **(metadata or {})}
