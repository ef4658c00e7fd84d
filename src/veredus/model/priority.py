"""The order in which queues are asked, and for how many tasks each."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from veredus.errors import ConfigError
from veredus.model.names import check_queue

HANDFULS = 4
"""The most queues that are asked at once."""


def parse_queues(given: Mapping[str, int] | Sequence[str] | str) -> dict[str, int]:
    """Parses `{"critical": 6}`, `["critical", "low"]` or `critical=6,low`: names with their weights."""
    is_text = isinstance(given, str)
    if isinstance(given, str):
        given = [part for part in given.split(",") if part.strip()]
    pairs: list[tuple[str, object]] = []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        for item in given:
            name, separator, text = item.partition("=") if isinstance(item, str) else (item, "", "")
            pairs.append((name.strip() if separator or is_text else name, text.strip() if separator else 1))
    queues: dict[str, int] = {}
    for name, raw in pairs:
        try:
            weight = int(raw)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            weight = 0
        if not isinstance(name, str) or not name.strip():
            raise ConfigError("queues", name, "queue names with one or more characters, such as critical=6,default=1")
        check_queue("queues", name)
        if weight < 1 or isinstance(raw, bool | float):
            raise ConfigError(f"queues: weight of {name!r}", raw, "a whole number of at least 1")
        queues[name] = weight
    if not queues:
        raise ConfigError("queues", given, "at least one queue, such as critical=6,default=1")
    return queues


def by_priority(queues: Mapping[str, int]) -> list[str]:
    """Strict: the heaviest first; equal weights in the given order."""
    return sorted(queues, key=lambda name: -queues[name])


def shares(queues: Mapping[str, int], hands: int, rng: random.Random) -> list[tuple[str, int]]:
    """Weighted: distribute the free slots at random, each to a queue with probability weight / sum of weights.

    All queues can then be asked in one round trip, and together never for more tasks than there are free slots. Many
    slots are distributed several at a time: asking fifty queues for one task each costs much more than asking a few for
    a dozen.
    """
    if len(queues) == 1:
        return [(next(iter(queues)), hands)]
    handful, rest = divmod(hands, HANDFULS)
    sizes = [handful + (place < rest) for place in range(min(hands, HANDFULS))]
    dealt: dict[str, int] = {}
    for name, size in zip(rng.choices(list(queues), list(queues.values()), k=len(sizes)), sizes, strict=True):
        dealt[name] = dealt.get(name, 0) + size
    return list(dealt.items())
