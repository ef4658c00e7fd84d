"""The types that a worker can start, and their pools, as a text that the dequeue script searches; and the worker's
record of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from veredus.model.pools import POOLS


def startable(names: Mapping[str, str], patterns: Mapping[str, str]) -> str:
    """Types and patterns (`email:*`), each with the pool of its handler. The longest pattern comes first."""
    found = [f"\1{name}\0{_number(pool)}" for name, pool in names.items()]
    for pattern in sorted(patterns, key=len, reverse=True):
        found.append(f"\2{pattern[:-1]}\0{_number(patterns[pattern])}")
    return "".join(found) or "\1\0" + _number(POOLS[0])


def knows(text: str, task_type: str) -> bool:
    """Whether the worker that wrote this text has a handler for a type."""
    if f"\1{task_type}\0" in text:
        return True
    prefixes = [part.partition("\0")[0] for part in text.split("\2")[1:]]
    return any(task_type.startswith(prefix) for prefix in prefixes)


def shown(startable: str, groups: Iterable[tuple[str, str]]) -> str:
    """The types in a worker's record, and the groups that it aggregates as (pattern, queue). An empty queue means
    all that it serves."""
    return startable + "\3" + "".join(f"{pattern}\0{queue}\0" for pattern, queue in groups)


def aggregates(text: str, queue: str, group: str) -> bool:
    """Whether a worker of this queue that wrote this text aggregates a group. One of an older version does not say
    so: it may aggregate any."""
    _, says, groups = text.partition("\3")
    parts = groups.split("\0")
    return not says or any(
        of in ("", queue) and (group.startswith(pattern[:-1]) if pattern.endswith("*") else group == pattern)
        for pattern, of in zip(parts[::2], parts[1::2], strict=False)
    )


def _number(pool: str) -> str:
    return str(POOLS.index(pool) + 1)
