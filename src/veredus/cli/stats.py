"""`veredus stats`: the numbers of all queues."""

from __future__ import annotations

from collections.abc import Callable

import click

from veredus.cli.common import (
    STATES,
    Duration,
    console,
    duration_text,
    echo_json,
    inspecting,
    json_option,
    show,
)
from veredus.inspector.inspector import Inspector
from veredus.model.type_stats import Durations, TypeStatsInfo

_REDIS = (
    "redis_version",
    "valkey_version",
    "uptime_in_days",
    "connected_clients",
    "used_memory_human",
    "used_memory_peak_human",
)

_TYPE_COLUMNS: list[tuple[str, Callable[[TypeStatsInfo], object]]] = [
    ("type", lambda one: one.type),
    ("processed", lambda one: f"{one.counted.processed:,}"),
    ("per s", lambda one: f"{one.counted.processed / one.window:.3g}"),
    ("failed", lambda one: f"{one.counted.failed:,}"),
    *[
        (f"{name} p{share}", lambda one, name=name, share=share: _time(getattr(one.counted, name), share))
        for name in ("run", "wait")
        for share in (50, 95, 99)
    ],
]


def _time(durations: Durations, share: int) -> str:
    found = durations.percentile(share / 100)
    return "" if found is None else duration_text(found)


@click.command()
@click.option("--types", "by_type", is_flag=True, help="What ran of each task type, with run times and waiting times.")
@click.option("--last", default=3600.0, type=Duration(), help="With --types: of this time (default 1h, at most 720h).")
@json_option
@inspecting
async def stats(inspector: Inspector, by_type: bool, last: float, as_json: bool) -> None:
    """Show the number of tasks per queue and state, or what ran of each task type.

    \b
    Examples:
      veredus stats
      veredus stats --json | jq .aggregate
      veredus stats --types --last 6h
    """
    if by_type:
        show(
            await inspector.type_stats(last),
            _TYPE_COLUMNS,
            as_json=as_json,
            empty=f"Nothing ran in the last {duration_text(last)}.",
        )
        return
    queues = await inspector.stats()
    info = await inspector.redis_info()
    total = {state: sum(getattr(queue, state) for queue in queues) for state in STATES}
    total |= {name: sum(getattr(queue, name) for queue in queues) for name in ("processed", "failed")}
    if as_json:
        total["timestamp"] = max((queue.as_dict()["timestamp"] for queue in queues), default=None)
        redis = {name: info[name] for name in _REDIS if name in info}
        echo_json({"aggregate": total, "queues": [queue.as_dict() for queue in queues], "redis": redis})
        return
    columns = [("queue", lambda q: q.queue + (" (paused)" if q.paused else ""))]
    columns += [(state, lambda q, state=state: f"{getattr(q, state):,}") for state in STATES]  # type: ignore[misc]
    columns += [
        ("latency", lambda q: f"{q.latency_ns / 1e6:,.0f} ms"),
        ("today", lambda q: f"{q.processed:,}"),
        ("failed", lambda q: f"{q.failed:,}"),
    ]
    show(queues, columns, as_json=False, empty="No queue yet. Enqueue a task, or try: veredus demo")
    out = console()
    counts = ", ".join(f"{number:,} {state}" for state, number in total.items() if number)
    out.print(f"total   {counts or 'no tasks'}")
    out.print("server  " + ", ".join(f"{name} {info[name]}" for name in _REDIS if name in info))
