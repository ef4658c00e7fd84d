"""Which types a worker can start, and where, as one text that the dequeue script searches."""

from __future__ import annotations

from collections.abc import Mapping

from veredus.model.pools import POOLS


def startable(names: Mapping[str, str], patterns: Mapping[str, str]) -> str:
    """Types and patterns (`email:*`), each with the pool that its handler runs in. The longest pattern comes first."""
    found = [f"\1{name}\0{_number(pool)}" for name, pool in names.items()]
    for pattern in sorted(patterns, key=len, reverse=True):
        found.append(f"\2{pattern[:-1]}\0{_number(patterns[pattern])}")
    return "".join(found) or "\1\0" + _number(POOLS[0])


def knows(text: str, task_type: str) -> bool:
    """Whether a worker that wrote this text has a handler for a type."""
    if f"\1{task_type}\0" in text:
        return True
    prefixes = [part.partition("\0")[0] for part in text.split("\2")[1:]]
    return any(task_type.startswith(prefix) for prefix in prefixes)


def _number(pool: str) -> str:
    return str(POOLS.index(pool) + 1)
